"""Start-up rules of vLLM that held for some versions only, by what engines of those versions printed."""

from __future__ import annotations

from typing import Any

import pytest

import trilemma as tl
from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB


def _start(model: str, *, gpu: str = "l40s", version: str, pp: int = 1, tp: int = 1, **options: Any) -> StartUp:
    return engines.get("vllm").start_up(
        model=load_model(model), accelerator=find(gpu), layout=Layout(pp=pp, tp=tp), version=version,
        options=ServeOptions(**options),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "pp", "gib", "needed_gib", "longest"),
    [
        # vllm-project/vllm issue 34076: 24.0 GiB needed of 3.18, estimated maximum 34,736
        ("qwen3-30b-a3b", 2, 3.18, 24.0, 34736),
        # issue 32105, second report: 92 layers, 71.16 GiB of 28.57, estimated maximum 81,392
        ("glm-4.6", 8, 28.57, 71.16, 81392),
    ],
)
@pytest.mark.parametrize("version", ["0.14.0", "0.15.1"])
def test_0_14_compares_the_need_of_the_whole_model_with_one_stage(
    model: str, pp: int, gib: float, needed_gib: float, longest: int, version: str
) -> None:
    context = {"qwen3-30b-a3b": 262144, "glm-4.6": 202752}[model]
    start = _start(model, gpu="h200-sxm", version=version, pp=pp, context=context, kv_cache_bytes=int(gib * GIB))
    assert float(start.pool.checked_bytes) / GIB == pytest.approx(needed_gib, abs=0.01)
    assert float(start.pool.max_context) == pytest.approx(longest, rel=3e-3)
    assert engines.get("vllm").likeliest_stage(start)[0] == "kv_too_small"


@pytest.mark.parametrize("version", ["0.13.0", "0.16.0", "0.21.0"])
def test_other_versions_compare_each_stage_with_its_own_layers(version: str) -> None:
    start = _start(
        "qwen3-30b-a3b", gpu="h200-sxm", version=version, pp=2, context=262144, kv_cache_bytes=int(12.5 * GIB)
    )
    assert float(start.pool.need_bytes) / GIB == pytest.approx(12.0, abs=0.01)
    assert float(start.pool.checked_bytes) == float(start.pool.need_bytes)
    assert engines.get("vllm").likeliest_stage(start)[0] == "ok"


def test_without_stages_the_check_is_the_same_in_every_version() -> None:
    one, two = (_start("qwen3-8b", version=version, context=8192) for version in ("0.13.0", "0.14.0"))
    assert float(two.pool.checked_bytes) == float(two.pool.need_bytes) == float(one.pool.need_bytes)


@pytest.mark.parametrize(("model", "layers"), [("nemotron-nano-12b-v2", 28), ("nemotron-h-56b", None)])
def test_hybrids_of_v0_reserve_states_of_all_sequences(model: str, layers: int | None) -> None:
    """vllm-project/vllm issue 23230: 27 layers · 256 sequences · 128 · 80 · 128 · 4 bytes, the 33.75 GiB that an L40S lacks."""
    older = _start(model, version="0.10.1", context=8192)
    newer = _start(model, version="0.11.0", context=8192)
    assert newer.ledger.get("state_cache") is None
    held = float(older.ledger["state_cache"].bytes)
    if layers is not None:
        assert held > layers * 256 * 128 * 80 * 128 * 4
        assert held == pytest.approx(layers * 256 * 128 * 80 * 128 * 4, rel=0.02)
    assert engines.get("vllm").likeliest_stage(older)[0] in ("oom_profile", "oom_load")
    few = _start(model, version="0.10.1", context=8192, max_seqs=4)
    assert float(few.ledger["state_cache"].bytes) == pytest.approx(held / 64)


def test_models_of_windows_alone_have_a_cache() -> None:
    """Mistral-7B-v0.1 at 4,096 tokens on a 24 GB card: 56,496 tokens, 13.79 requests (vllm-project/vllm issue 188's sizes)."""
    cache = tl.fit("mistral-7b-v0.1", "rtx-4090", context=4096, engine="vllm@0.24.0").to_dict()["kv_cache"]
    assert cache["tokens"] == pytest.approx(56496, rel=0.02)
    assert cache["max_concurrency"] == pytest.approx(13.79, rel=0.02)
    assert cache["bytes_per_token"] == 131072


def test_requests_beyond_the_window_need_no_more_than_it() -> None:
    """A window of 4,096 tokens and the batches under way bound a request; shorter ones take less."""
    short, long = (_start("mistral-7b-v0.1", version="0.28.0", context=length, kv_cache_bytes=8 * GIB)
                   for length in (16384, 32768))  # fmt: skip
    assert float(short.pool.need_bytes) == float(long.pool.need_bytes)
    assert float(long.pool.grows_to) < 16384
    few = _start("mistral-7b-v0.1", version="0.28.0", context=2048, kv_cache_bytes=8 * GIB)
    assert float(few.pool.need_bytes) < float(short.pool.need_bytes)


@pytest.mark.parametrize(
    ("version", "card", "told"),
    [
        ("0.8.5", "rtx-5090", True),  # vllm-project/vllm issue 16901: no kernel image is available
        ("0.8.5", "b200-sxm", True),
        ("0.8.5", "h100-sxm", False),
        ("0.9.0", "rtx-5090", False),  # its release notes: CUDA 12.8, Blackwell supported
        ("0.8.5", "mi300x", False),  # capabilities are NVIDIA's
    ],
)
def test_a_release_older_than_the_card_says_so(version: str, card: str, told: bool) -> None:
    answer = tl.check(f"docker run --gpus all vllm/vllm-openai:v{version} --model Qwen/Qwen3-8B", gpu=card)
    messages = [one.message for one in answer.warnings if one.code == "no-kernels-for-card"]
    assert bool(messages) == told
    assert all("0.9.0 is the first" in message for message in messages)


def test_early_v1_takes_1024_sequences_and_all_graphs() -> None:
    """vllm-project/vllm issue 17238: two RTX 3090 do not start with 0.8.1's own number of sequences and do with 8; 17 GiB of
    weights each. Graphs are those of 512 tokens whatever the sequences are (issue 16128: 0.8.3 has no room for them)."""
    sizes = {"gpu": "rtx-3090", "tp": 2, "context": 4096, "eager": True, "memory_fraction": 0.9}
    many, few = (_start("qwen2.5-32b", version="0.8.1", **sizes, max_seqs=seqs) for seqs in (None, 8))
    assert float(many.ledger["logits"].bytes) == pytest.approx(1024 * 152064 * 38.9)
    assert float(few.ledger["logits"].bytes) == pytest.approx(8 * 152064 * 38.9)
    assert float(_start("qwen2.5-32b", version="0.8.4", **sizes).ledger["logits"].bytes) == pytest.approx(
        256 * 152064 * 38.9
    )
    graphs = [float(_start("qwen2.5-7b", version=version, context=4096, max_seqs=2).ledger["cuda_graphs"].bytes)
              for version in ("0.8.3", "0.9.2", "0.10.0")]  # fmt: skip
    assert graphs[0] == graphs[1] > 3 * graphs[2]


def test_what_v1_did_not_take_started_v0() -> None:
    """vllm/engine/arg_utils.py, _is_v1_supported_oracle: T4 until 0.10.1, a cache of 8 bits off Hopper in 0.8."""
    older = _start("qwen2.5-7b", gpu="t4", version="0.7.3", context=4096, tp=2).ledger["cuda_graphs"].bytes
    for version, same in (("0.8.5", True), ("0.10.1", True), ("0.10.2", False)):
        graphs = _start("qwen2.5-7b", gpu="t4", version=version, context=4096, tp=2).ledger["cuda_graphs"].bytes
        assert bool(graphs == older) is same
    cached = {"version": "0.8.5", "context": 4096, "kv_dtype": "fp8"}
    asked_v0 = _start("qwen2.5-7b", **cached, extra={"VLLM_USE_V1": "0"})
    assert _start("qwen2.5-7b", **cached).pool.tokens == asked_v0.pool.tokens
    hopper = _start("qwen2.5-7b", gpu="h100-sxm5-80gb", **cached, extra={"VLLM_USE_V1": "0"})
    assert _start("qwen2.5-7b", gpu="h100-sxm5-80gb", **cached).pool.tokens != hopper.pool.tokens


def test_the_second_runner_charges_no_graphs() -> None:
    """Pools that 0.26.0 (RTX 4080), 0.28.0 (L4) and 0.31.0 (A100) print are what budget, weights and peak leave."""
    for model, charged in (("qwen2.5-7b-instruct-awq", False), ("qwen3-30b-a3b-fp8", True)):
        start = _start(model, version="0.26.0", context=4096)
        lines = {name: float(start.ledger[name].bytes) for name in ("weights", "activations", "logits", "workspace")}
        left = float(start.budget_bytes) - sum(lines.values()) - float(start.pool.available_bytes)
        assert left == pytest.approx(float(start.ledger["cuda_graphs"].bytes) * charged, abs=0.02 * GIB)


def test_cards_of_160_gib_batch_16384_tokens_since_0_28() -> None:
    """vllm/engine/arg_utils.py, get_batch_defaults."""
    for gpu, version, tokens in (("b200", "0.27.1", 8192), ("b200", "0.28.0", 16384), ("h200-sxm", "0.28.0", 8192)):
        assert int(_start("qwen2.5-7b", gpu=gpu, version=version, context=32768).max_batched_tokens) == tokens
