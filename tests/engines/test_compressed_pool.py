"""SGLang's pool of compressed attention against what its builds printed for DeepSeek-V4."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.sglang.compressed_pool import CompressedPool, layer_bytes
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, Layout, ServeOptions


def _rate(model: str, *, ratio: float, by_request: int, drafting: bool = False) -> float:
    pool = CompressedPool(window_ratio=ratio, by_request=by_request, requests=256, drafting=drafting)
    layers = load_model(model).layers
    tokens, _ = layer_bytes(layers, pool, tp=8, kv=catalogue.get("fp8_e4m3"), drafting_from=len(layers))
    return float(np.sum(tokens))


@pytest.mark.parametrize(
    ("model", "ratio", "by_request", "printed"),
    [
        ("deepseek-v4-flash", 0.1, 128, 7705.45),  # a build of 2026-08-10
        ("deepseek-v4-pro", 0.15, 0, 32781.44),  # 0.5.13
    ],
)
def test_bytes_of_a_token_as_printed(model: str, ratio: float, by_request: int, printed: float) -> None:
    assert _rate(model, ratio=ratio, by_request=by_request) == pytest.approx(printed, abs=0.005)


def _start(gpu: str, *, version: str, tp: int = 8, pp: int = 1, draft: Draft | None = None, **options: int) -> StartUp:
    return engines.get("sglang").start_up(
        model=load_model("deepseek-v4-flash"), accelerator=find(gpu), layout=Layout(tp=tp, pp=pp), version=version,
        options=ServeOptions(context=32768, quantization=None, **options), draft=draft,
    )  # fmt: skip


def test_states_by_request_take_a_fixed_part() -> None:
    """256 requests: (256 + 2) · 128 rows of 4,096 bytes in 20 layers, 2.53 GiB; fewer requests leave more tokens."""
    many, few = (_start("h200-sxm", version="0.5.17", max_seqs=number) for number in (256, 16))
    assert float(many.ledger["state_cache"].bytes) == pytest.approx(258 * 128 * 4096 * 20, rel=5e-3)
    assert float(few.pool.tokens) > float(many.pool.tokens)
    older = _start("h200-sxm", version="0.5.12", max_seqs=256)
    assert older.ledger.get("state_cache") is None
    assert float(many.pool.bytes_per_token_per_gpu) == pytest.approx(7705.45, abs=0.01)
    assert float(older.pool.bytes_per_token_per_gpu) == pytest.approx(15897.45, abs=0.01)


def test_the_version_that_is_not_stated_bounds_both_rules() -> None:
    command = {"model": load_model("deepseek-v4-flash"), "accelerator": find("h200-sxm"), "layout": Layout(tp=8)}
    unknown = engines.get("sglang").start_up(options=ServeOptions(), version=None, **command)
    newest = engines.get("sglang").start_up(options=ServeOptions(), version="0.5.23", **command)
    low, high = (
        float(unknown.pool.available_low_bytes) / float(unknown.pool.bytes_per_token_per_gpu),
        float(unknown.pool.available_high_bytes) / float(unknown.pool.bytes_per_token_per_gpu),
    )
    assert low < float(newest.pool.tokens) < high
    assert [note.code for note in unknown.warnings].count("approximate-pool") == 1
    assert not any(note.code == "approximate-pool" for note in newest.warnings)


def test_drafting_doubles_rings_and_adds_a_layer() -> None:
    """Ring sizes 16 and 256 instead of 8 and 128 (get_compress_state_ring_size); a token costs (layers + 1) / layers."""
    plain = _start("h200-sxm", version="0.5.12")
    drafting = _start("h200-sxm", version="0.5.12", draft=Draft(method="mtp", tokens=3))
    rings = 0.1 * (4096 * 20 + 8 / 128 * (8192 + 2048) * 21)
    rate = float(plain.pool.bytes_per_token_per_gpu) + rings
    assert float(drafting.pool.bytes_per_token_per_gpu) == pytest.approx(rate * 44 / 43, rel=1e-6)
