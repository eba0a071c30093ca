"""SGLang's defaults and pool counted by hand from its published code.

server_args.py (_handle_gpu_memory_settings of 0.4.1 to 0.5.20: chunk, graphs and reserve by card), model_runner.py and
mem_cache/memory_pool.py (static share, recurrent states by ratio, table of requests).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB, MIB

VERSION = "0.5.5"


def start(
    model: str = "llama-3.1-8b", gpu: str = "h100-sxm", layout: Layout | None = None, *, version: str | None = VERSION,
    draft: Draft | None = None, free: float | None = None, capacity: float | None = None, **options: Any,
) -> StartUp:  # fmt: skip
    return engines.get("sglang").start_up(
        model=load_model(model), accelerator=find(gpu), layout=layout or Layout(), options=ServeOptions(**options),
        version=version, draft=draft, free_bytes=free, capacity_bytes=capacity,
    )  # fmt: skip


def mib(gpu: str) -> float:
    """What the driver says of a card, by which SGLang sizes its defaults."""
    total = find(gpu).nvml_total_bytes
    assert total is not None
    return total.value / MIB


def reserve(card: float, *, tp: int = 1, pp: int = 1, dp: int = 1, chunk: int, batch: int, draft: float = 0.0) -> float:
    """``_handle_gpu_memory_settings`` of 0.5.3 to 0.5.8; ``tp`` are all ranks of a stage."""
    kept = 512 + max(chunk, 2048) * 1.5 + batch * 2 + tp * pp / 8 * 1024
    if dp > 1:
        kept += batch * dp * (3 + (1.5 if batch > 300 else 0))
    if card > 60 * 1024:
        kept = max(kept, 10 * 1024)
    return round((card - kept - draft) / card, 3)


#: (card, layout, chunk and largest batch by the class of the card)
CLASSES = [
    ("t4", Layout(), 2048, 8),
    ("rtx-4090", Layout(), 2048, 16),
    ("rtx-4090", Layout(tp=4), 2048, 80),
    ("rtx-4090", Layout(tp=2), 2048, 16),
    ("l40s", Layout(), 4096, 32),
    ("l40s", Layout(tp=4), 4096, 160),
    ("h100-sxm", Layout(), 8192, 256),
    ("h100-sxm", Layout(tp=8), 8192, 512),
    ("h100-sxm", Layout(tp=2, pp=4), 8192, 256),
    ("h200-sxm", Layout(tp=3), 8192, 256),
    ("b200-sxm-180gb", Layout(), 16384, 512),
]


@pytest.mark.parametrize(("gpu", "layout", "chunk", "batch"), CLASSES)
def test_what_a_card_keeps_back(gpu: str, layout: Layout, chunk: int, batch: int) -> None:
    found = start(gpu=gpu, layout=layout)
    assert int(found.max_batched_tokens) == chunk
    ranks = {"tp": int(layout.tp), "pp": int(layout.pp)}
    assert float(found.memory_fraction) == pytest.approx(reserve(mib(gpu), **ranks, chunk=chunk, batch=batch))


def share(gpu: str = "l40s", layout: Layout | None = None, **more: Any) -> float:
    return float(start(gpu=gpu, layout=layout, **more).memory_fraction)


def test_what_raises_the_reserve() -> None:
    card = mib("l40s")
    assert share(max_batched_tokens=1024) == pytest.approx(reserve(card, chunk=1024, batch=32))
    assert share(max_batched_tokens=16384) == pytest.approx(reserve(card, chunk=16384, batch=32))
    assert share(cuda_graph_sizes=(1, 100, 4)) == pytest.approx(reserve(card, chunk=4096, batch=100))
    assert share(extra={"cuda-graph-max-bs": 64}) == pytest.approx(reserve(card, chunk=4096, batch=64))
    assert share(extra={"cuda-graph-max-bs-decode": 64}) == pytest.approx(reserve(card, chunk=4096, batch=64))
    assert share(eager=True) == pytest.approx(reserve(card, chunk=4096, batch=0))
    assert share(cuda_graph_sizes=()) == pytest.approx(reserve(card, chunk=4096, batch=0))
    assert share(layout=Layout(dp=2)) == pytest.approx(reserve(card, chunk=4096, batch=32))  # whole engines
    shared = Layout(dp=4, ep=4)
    assert share(layout=shared, model="qwen3-30b-a3b") == pytest.approx(
        reserve(card, tp=4, dp=4, chunk=4096, batch=160)
    )
    wide = {"enable-dp-attention": True}
    assert share("b200-sxm-180gb", Layout(tp=2, dp=4), extra=wide, model="qwen3-30b-a3b") == pytest.approx(
        reserve(mib("b200-sxm-180gb"), tp=8, dp=4, chunk=16384, batch=512)
    )


@pytest.mark.parametrize(("method", "kept"), [("eagle3", 2048), ("mtp", 2048), ("draft", 6144), ("ngram", 0)])
def test_drafts_keep_back_more(method: str, kept: float) -> None:
    model = {"draft": None, "mtp": None, "eagle3": None, "ngram": None}[method]
    found = share(draft=Draft(method=method, tokens=3, model=model))
    assert found == pytest.approx(reserve(mib("l40s"), chunk=4096, batch=32, draft=kept))


def test_an_earlier_reserve_went_by_the_ranks() -> None:
    """0.4.1 to 0.4.5: 0.88 on one rank, 0.79 from sixteen on."""
    for ranks, expected in ((1, 0.88), (2, 0.87), (4, 0.85), (8, 0.81), (16, 0.79), (32, 0.79)):
        assert share("h100-sxm", Layout(tp=ranks), version="0.4.3") == pytest.approx(expected)
    # 0.4.6: cards above 80 GiB keep back 13 GiB.
    assert share("h200-sxm", version="0.4.6") == pytest.approx((mib("h200-sxm") - 13312) / mib("h200-sxm"))
    assert share("h100-sxm", version="0.4.6") == pytest.approx(0.88)


def test_a_later_one_by_card_and_ranks() -> None:
    """0.4.8 to 0.5.2: MiB by class of the card and rank, drafts and attention data parallelism beside."""
    card = mib("h100-sxm")
    for layout, ranks in ((Layout(), 1), (Layout(tp=4), 4), (Layout(tp=2, pp=2), 4)):
        assert share("h100-sxm", layout, version="0.5.1") == pytest.approx(round((card - 9728 - 512 * ranks) / card, 3))
    drafting = {"draft": Draft(method="eagle3", tokens=3)}
    assert share("h100-sxm", version="0.5.1", **drafting) == pytest.approx(round((card - 9728 - 512 - 2048) / card, 3))
    small = mib("rtx-4090")
    assert share("rtx-4090", version="0.5.1") == pytest.approx(round((small - 2867.2 - 102.4) / small, 3))
    both = share("h100-sxm", Layout(dp=2, ep=2), version="0.5.1", model="qwen3-30b-a3b")
    assert both == pytest.approx(round((card - 9728 - 512 * 2 - 4096) / card, 3))


def test_towers_take_a_share_of_the_share() -> None:
    """adjust_mem_fraction_for_vlm: times 0.95, times one less a tenth of how much larger than ViT-L/14 the tower is."""
    model = load_model("gemma-3-12b")
    size = model.vision["layers"] * model.vision["hidden"] ** 2 / (24 * 1024**2)
    factor = max(0.8, min(1.05, 1 - 0.1 * (size - 1)))
    text = share(model="gemma-3-12b", text_only=True)
    assert text == pytest.approx(reserve(mib("l40s"), chunk=4096, batch=32))
    assert share(model="gemma-3-12b") == pytest.approx(text * 0.95 * factor)
    assert share(model="gemma-3-12b", memory_fraction=0.8) == 0.8
    assert share(model="gemma-3-12b", version="0.4.9", gpu="h100-sxm") == share(gpu="h100-sxm", version="0.4.9")


def held(found: StartUp, *names: str) -> float:
    return sum(float(found.ledger[name].bytes) for name in names if found.ledger.get(name) is not None)


def test_the_pool_is_the_static_share_less_what_is_loaded() -> None:
    found = start(memory_fraction=0.8)
    capacity = float(found.capacity_bytes)
    left = (capacity - held(found, "context")) * 0.8 - held(found, "weights")
    rate = 32 * 2 * 8 * 128 * 2
    assert int(found.pool.tokens) == int(left / rate)
    assert float(found.pool.available_bytes) == pytest.approx(int(left / rate) * rate)
    assert float(found.pool.bytes_per_token_per_gpu) == rate
    shared = start(memory_fraction=0.8, free=40 * GIB)
    assert int(shared.pool.tokens) == int(((40 * GIB - held(shared, "context")) * 0.8 - held(shared, "weights")) / rate)


def test_pools_of_pages() -> None:
    for page in (1, 64, 128):
        tokens = int(start(memory_fraction=0.8, block_size=page).pool.tokens)
        assert tokens % page == 0
        assert int(start(memory_fraction=0.8, block_size=page).pool.blocks) == tokens // page
        assert 0 <= int(start(memory_fraction=0.8, block_size=1).pool.tokens) - tokens < page


def test_pools_that_are_stated() -> None:
    assert int(start(extra={"max-total-tokens": 5000}).pool.tokens) == 5000
    assert int(start(extra={"max-total-tokens": 10**9}).pool.tokens) == int(start().pool.tokens)
    rate = 32 * 2 * 8 * 128 * 2
    assert int(start(kv_cache_bytes=2 * GIB).pool.tokens) == 2 * GIB // rate


def requests(**more: Any) -> int:
    return int(np.asarray(start(**more).max_seqs))


def test_requests_at_once() -> None:
    """512 of each context's worth of tokens, between 2,048 and 4,096; half of the pool's tokens at most."""
    tokens = int(start(context=4096).pool.tokens)
    assert requests(context=4096) == int(np.clip(tokens / 4096 * 512, 2048, 4096))
    assert requests(context=131072) == 2048
    assert requests(context=131072, extra={"max-total-tokens": 1000}) == 500
    assert requests(max_seqs=17) == 17
    assert requests(max_seqs=17, extra={"max-total-tokens": 10}) == 5
    assert requests(extra={"max-total-tokens": 1}) == 1


def test_the_table_of_requests() -> None:
    """A 32-bit index for each token of the context and four beside, for each request."""
    found = start(context=4096, max_seqs=100)
    assert held(found, "workspace") == 100 * (4096 + 4) * 4
    assert found.ledger["workspace"].budget == "outside"


def test_states_take_their_share_of_what_is_left() -> None:
    """Qwen3-Next: 36 layers of states; ``--mamba-full-memory-ratio`` r gives them r / (1 + r) of what is left."""
    plain: dict[str, Any] = {"model": "qwen3-next-80b-a3b", "gpu": "b300-sxm", "memory_fraction": 0.8}
    each: dict[float, StartUp] = {
        ratio: start(**plain, extra={"mamba-full-memory-ratio": ratio}) for ratio in (0.5, 1.0)
    }
    model = load_model("qwen3-next-80b-a3b")
    state = sum(float(one.mixer.cache_law(tp=1, kv_format=model.tensors[0].format).fixed_bytes) for one in model.layers
                if one.mixer is not None and one.mixer.keeps_state)  # fmt: skip
    for ratio, found in each.items():
        left = (float(found.capacity_bytes) - held(found, "context")) * 0.8 - held(found, "weights")
        slots = int(left * ratio / (1 + ratio) / state)
        assert held(found, "state_cache") == pytest.approx(slots * state, rel=1e-6)
        rate = float(found.pool.bytes_per_token_per_gpu)
        assert int(found.pool.tokens) == pytest.approx((left - slots * state) / rate, abs=64)
    asked = start(**plain, extra={"max-mamba-cache-size": 7})
    assert held(asked, "state_cache") == pytest.approx(7 * state, rel=1e-6)
    alone = start(**plain, prefix_caching=False, max_seqs=9)
    assert held(alone, "state_cache") == pytest.approx(9 * state, rel=1e-6)
    assert int(np.asarray(alone.max_seqs)) == 9
    assert held(start(**plain, max_seqs=9), "state_cache") > 100 * state
    assert held(start(**plain, kv_cache_bytes=GIB), "state_cache") == 0


def codes(**more: Any) -> set[str]:
    return {one.code for one in start(**more).warnings}


def test_what_is_said_of_a_pool() -> None:
    assert "pool-below-context" in codes(context=131072, extra={"max-total-tokens": 131071})
    assert "pool-below-context" not in codes(context=131072, extra={"max-total-tokens": 131072})
    message = next(
        one.message for one in start(context=9000, extra={"max-total-tokens": 8000}).warnings if "below" in one.code
    )
    assert (
        "8,000 tokens, fewer than the context of 9,000: SGLang starts all the same and refuses longer requests"
        in message
    )
    message = next(one.message for one in start(extra={"max-total-tokens": 8000}).warnings if "below" in one.code)
    assert message.endswith("SGLang starts and serves up to that")


def test_pools_sized_after_capture() -> None:
    variable = {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}
    card = mib("l40s")
    for version, kept in (("0.5.17", 512), ("0.5.20", 1536)):
        found = start(gpu="l40s", version=version, extra=variable)
        assert float(found.memory_fraction) == pytest.approx(round((card - kept - 128) / card, 3))
        assert "sized-after-capture" in {one.code for one in found.warnings}
        left = (float(found.capacity_bytes) - held(found, "context")) * float(found.memory_fraction)
        left -= held(found, "activations", "cuda_graphs", "weights")
        assert int(found.pool.tokens) == pytest.approx(left / (32 * 2 * 8 * 128 * 2), abs=1)
    for off in ({"version": "0.5.14"}, {"eager": True}, {"model": "deepseek-v2-lite"}):
        assert "sized-after-capture" not in codes(**{"gpu": "l40s", "version": "0.5.20", "extra": variable, **off})
    for word, said in (("true", True), ("YES", True), ("0", False), ("no", False)):
        extra = {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": word}
        assert ("sized-after-capture" in codes(gpu="l40s", version="0.5.20", extra=extra)) is said


@pytest.mark.parametrize(("asked", "model", "gpu", "found"), [
    (None, "llama-3.1-8b", "h100-sxm", "bf16"), ("auto", "llama-3.1-8b", "h100-sxm", "bf16"),
    ("fp8_e5m2", "llama-3.1-8b", "h100-sxm", "fp8_e5m2"), ("fp8", "llama-3.1-8b", "h100-sxm", "fp8_e4m3"),
    ("fp4_e2m1", "llama-3.1-8b", "b200-sxm-180gb", "nvfp4"), ("bfloat16", "deepseek-v3.2", "b300-sxm", "bf16"),
])  # fmt: skip
def test_formats_of_the_cache(asked: str | None, model: str, gpu: str, found: str) -> None:
    assert start(model, gpu, kv_dtype=asked).kv_format == found


def test_a_format_that_is_none() -> None:
    with pytest.raises(InputError, match="--kv-cache-dtype 'int3x' is not a cache type of SGLang"):
        start(kv_dtype="int3x")
