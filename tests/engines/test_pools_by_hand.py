"""Pools of TensorRT-LLM and of Transformers added up from their lines, and what shapes each line, by the rules of their code.

_torch/pyexecutor/_util.py (a share of what is free after the peak), kv_cache_config; transformers' cache_utils.py (a cache that
grows by copying), generation/utils.py (logits of all tokens or of the last), continuous batching.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.tensorrt_llm.facts import for_version as trt
from trilemma.engines.transformers_serve.facts import for_version as hf
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB

TRT, HF = "1.2.1", "5.24"
#: Llama 3.1 8B: bytes of a token's cache in 16 bits.
RATE, V, H, F, L = 32 * 2 * 8 * 128 * 2, 128256, 4096, 14336, 32


def start(
    engine: str, model: str = "llama-3.1-8b", gpu: str = "h100-sxm", layout: Layout | None = None, *,
    version: str | None = None, free: float | None = None, draft: Draft | None = None, **options: Any,
) -> StartUp:  # fmt: skip
    known = {"tensorrt-llm": TRT, "transformers": HF}[engine]
    return engines.get(engine).start_up(
        model=load_model(model), accelerator=find(gpu), layout=layout or Layout(), options=ServeOptions(**options),
        version=version or known, free_bytes=free, draft=draft,
    )  # fmt: skip


def size(found: StartUp, name: str) -> float:
    one = found.ledger.get(name)
    return 0.0 if one is None else float(one.bytes)


def beside(found: StartUp) -> float:
    """All lines but the cache."""
    return sum(float(one.bytes) for one in found.ledger if one.name not in ("kv_cache", "state_cache"))


@pytest.mark.parametrize(
    ("options", "share"), [({}, None), ({"memory_fraction": 0.5}, 0.5), ({"memory_fraction": 0.95}, 0.95)]
)
def test_tensorrt_llm_takes_a_share_of_what_is_left(options: dict[str, Any], share: float | None) -> None:
    found = start("tensorrt-llm", **options)
    share = trt(TRT).memory_fraction if share is None else share
    block = trt(TRT).block_size
    left = float(found.capacity_bytes) - beside(found)
    blocks = int(share * left / (RATE * block))
    assert int(found.pool.blocks) == pytest.approx(blocks, abs=1)
    assert int(found.pool.tokens) == int(found.pool.blocks) * block
    assert size(found, "kv_cache") == int(found.pool.tokens) * RATE
    half = start("tensorrt-llm", free=40 * GIB, **options)
    assert int(half.pool.blocks) == pytest.approx(int(share * (40 * GIB - beside(half)) / (RATE * block)), abs=1)


def test_pools_of_tensorrt_llm_that_are_stated() -> None:
    block = trt(TRT).block_size
    assert int(start("tensorrt-llm", kv_cache_bytes=2 * GIB).pool.blocks) == 2 * GIB // (RATE * block)
    limited = start("tensorrt-llm", extra={"kv_cache_config": {"max_tokens": 1001}})
    assert int(limited.pool.blocks) == -(-1001 // block)
    large = start("tensorrt-llm", extra={"kv_cache_config": {"max_tokens": 10**9}})
    assert int(large.pool.blocks) == int(start("tensorrt-llm").pool.blocks)
    assert int(start("tensorrt-llm", block_size=64).pool.tokens) % 64 == 0


def test_lines_of_tensorrt_llm() -> None:
    memory = trt(TRT).coefficients
    forward, logits = memory["forward"], memory["logits"]
    for tokens, seqs, context, rows in ((2048, 8, 8192, 1), (8192, 1000, 257, 32), (8192, 20, 257, 20)):
        found = start("tensorrt-llm", max_batched_tokens=tokens, max_seqs=seqs, context=context)
        assert size(found, "activations") == pytest.approx(
            tokens * 2 * (forward["hidden_copies"] * H + forward["ffn_copies"] * F), abs=1
        )
        assert size(found, "logits") == pytest.approx(rows * V * logits["bytes"])
    assert size(start("tensorrt-llm", layout=Layout(tp=4), max_batched_tokens=2048), "activations") == pytest.approx(
        2048 * 2 * (forward["hidden_copies"] * H + forward["ffn_copies"] * F / 4), abs=1
    )
    assert size(start("tensorrt-llm"), "workspace") == round(memory["non_torch_gib"]["alone"] * GIB)
    several = memory["non_torch_gib"]["alone"] + memory["non_torch_gib"]["multicast"]
    assert size(start("tensorrt-llm", layout=Layout(tp=2)), "workspace") == round(several * GIB)
    first = start("tensorrt-llm", layout=Layout(pp=2))
    assert size(first, "context") == round(memory["context_gib"]["linked"] * GIB)


def test_graphs_of_tensorrt_llm() -> None:
    plain = size(start("tensorrt-llm"), "cuda_graphs")
    assert plain > 0
    assert size(start("tensorrt-llm", eager=True), "cuda_graphs") == 0
    assert size(start("tensorrt-llm", cuda_graph_sizes=()), "cuda_graphs") == 0
    most = trt(TRT).graph_batch
    assert size(start("tensorrt-llm", cuda_graph_sizes=(1, most)), "cuda_graphs") == plain
    assert size(start("tensorrt-llm", extra={"cuda_graph_config": {"max_batch_size": most}}), "cuda_graphs") == plain
    assert size(start("tensorrt-llm", extra={"cuda_graph_config": {"max_batch_size": 2 * most}}), "cuda_graphs") > plain
    assert size(start("tensorrt-llm", extra={"cuda_graph_config": {"enable_padding": True}}), "cuda_graphs") == plain


def test_engines_built_ahead() -> None:
    memory = trt("0.20").coefficients
    rows = 16 * memory["logits"]["built_rows"]
    for found in (start("tensorrt-llm", version="0.20", max_seqs=16),
                  start("tensorrt-llm", max_seqs=16, extra={"backend": "tensorrt"}),
                  start("tensorrt-llm", max_seqs=16, extra={"backend": "trt"})):  # fmt: skip
        assert size(found, "workspace") == round(memory["non_torch_gib"]["built"] * GIB)
        assert size(found, "cuda_graphs") == 0
        assert size(found, "activations") == size(start("tensorrt-llm"), "activations")
        assert size(found, "logits") == pytest.approx(rows * V * memory["logits"]["bytes"])


def test_states_take_half_of_what_is_left_at_most() -> None:
    model = load_model("qwen3-next-80b-a3b")
    state = sum(float(one.mixer.cache_law(tp=1, kv_format=model.tensors[0].format).fixed_bytes) for one in model.layers
                if one.mixer is not None and one.mixer.keeps_state)  # fmt: skip
    few = start("tensorrt-llm", "qwen3-next-80b-a3b", "b300-sxm", max_seqs=4)
    assert size(few, "state_cache") == pytest.approx(4 * state, rel=1e-6)
    many = start("tensorrt-llm", "qwen3-next-80b-a3b", "b300-sxm", max_seqs=100_000)
    left = float(many.capacity_bytes) - beside(many)
    assert size(many, "state_cache") == pytest.approx(left / 2, rel=1e-6)


def test_replicas_of_tensorrt_llm_attend_alone_or_together() -> None:
    for layout, extra in ((Layout(tp=2, dp=2, ep=4), {}), (Layout(tp=2, dp=2), {"enable_attention_dp": True})):
        with pytest.raises(InputError, match="--tp 2 x --dp 2: TensorRT-LLM attends on every rank alone"):
            start("tensorrt-llm", "qwen3-30b-a3b", layout=layout, extra=extra)
    assert start("tensorrt-llm", "qwen3-30b-a3b", layout=Layout(tp=2, dp=2)).pool
    apart = start("tensorrt-llm", "qwen3-30b-a3b", layout=Layout(dp=4, ep=4))
    assert float(apart.pool.bytes_per_token_per_gpu) == 48 * 2 * 4 * 128 * 2
    cut = start("tensorrt-llm", "qwen3-30b-a3b", layout=Layout(tp=4))
    assert float(cut.pool.bytes_per_token_per_gpu) == 48 * 2 * 128 * 2


def test_caches_of_tensorrt_llm() -> None:
    assert start("tensorrt-llm", kv_dtype="fp8").kv_format == "fp8_e4m3"
    assert start("tensorrt-llm", kv_dtype="auto").kv_format == start("tensorrt-llm").kv_format == "bf16"
    with pytest.raises(InputError, match="a cache in 'int3x' is none of TensorRT-LLM's"):
        start("tensorrt-llm", kv_dtype="int3x")


@pytest.mark.parametrize(("tokens", "said"), [(4095, True), (4096, False), (5000, False)])
def test_a_pool_below_the_longest_request_is_said(tokens: int, said: bool) -> None:
    extra = {"kv_cache_config": {"max_tokens": tokens}}
    found = start("tensorrt-llm", context=4096, block_size=1, extra=extra)
    assert any(one.code == "pool-below-context" for one in found.warnings) is said
    if said:
        assert "4,095 tokens, fewer than the 4,096 of the longest request" in found.warnings[-1].message


@pytest.mark.parametrize(("seqs", "context"), [(1, 4096), (4, 2048), (None, 1024)])
def test_a_cache_of_transformers_grows_with_its_requests(seqs: int | None, context: int) -> None:
    found = start("transformers", max_seqs=seqs, context=context)
    facts = hf(HF)
    at_once = facts.sequences if seqs is None else seqs
    assert size(found, "kv_cache") == at_once * context * RATE
    assert float(found.pool.need_bytes) == at_once * context * RATE
    left = float(found.capacity_bytes) - beside(found)
    assert float(found.pool.available_bytes) == pytest.approx(left, abs=2)
    assert int(found.pool.tokens) == pytest.approx(int(left / RATE), abs=1)
    assert float(found.pool.concurrency) == min(int(found.pool.tokens) / context, at_once)


def test_lines_of_transformers() -> None:
    facts = hf(HF)
    memory = facts.coefficients
    found = start("transformers", max_seqs=4, context=2048)
    rows = 2048 * 4
    assert size(found, "activations") == pytest.approx(
        rows * 2 * (memory["forward"]["hidden_copies"] * H + memory["forward"]["ffn_copies"] * F), abs=1
    )
    kept = rows if facts.logits_of_all_tokens else 4
    assert size(found, "logits") == kept * V * memory["logits"]["bytes"]
    assert size(found, "workspace") == memory["eager"]["cache_growth_copies"] * RATE / L * 2048 * 4
    assert size(found, "fragmentation") == pytest.approx(
        memory["eager"]["fragmentation_share"] * (size(found, "activations") + size(found, "logits")), abs=1
    )
    assert size(found, "context") == round(memory["context_gib"]["alone"] * GIB)
    short = start("transformers", max_seqs=4, context=2048, max_batched_tokens=512)
    assert size(short, "activations") == pytest.approx(size(found, "activations") / 4, abs=1)
    assert size(
        start("transformers", max_seqs=4, context=2048, max_batched_tokens=10**6), "activations"
    ) == pytest.approx(size(found, "activations"), abs=1)


def test_continuous_batching_takes_a_share_of_what_is_left() -> None:
    paged = {"continuous-batching": True}
    found = start("transformers", context=2048, extra=paged)
    facts = hf(HF)
    left = float(found.capacity_bytes) - beside(found)
    assert size(found, "kv_cache") == pytest.approx(left * facts.pool_share, rel=1e-6)
    assert size(found, "workspace") == 0
    assert float(found.pool.need_bytes) == 2048 * RATE
    assert float(found.pool.concurrency) == pytest.approx(int(found.pool.tokens) / 2048)
    half = start("transformers", context=2048, memory_fraction=0.5, extra=paged)
    assert size(half, "kv_cache") == pytest.approx(left * 0.5, rel=1e-6)
    memory = facts.coefficients["forward"]
    assert size(found, "activations") == pytest.approx(
        facts.paged_tokens * 2 * (memory["hidden_copies"] * H + memory["ffn_copies"] * F), abs=1
    )


def codes(**more: Any) -> set[str]:
    return {one.code for one in start("transformers", **more).warnings}


def test_what_is_assumed_of_transformers() -> None:
    assert "assumed-context" in codes()
    assert "assumed-context" not in codes(context=4096)
    unstated = hf(HF).coefficients["unstated"]["context"]
    assert start("transformers").context == unstated
    assert start("transformers", "llama-2-7b").context == min(4096, unstated)
    assert "draft-not-counted" in codes(draft=Draft(method="draft", tokens=4, model="org/small"))
    assert "draft-not-counted" not in codes()


def test_old_transformers_load_in_32_bits() -> None:
    old, new = start("transformers", version="4.50", context=2048), start("transformers", context=2048)
    assert size(old, "weights") == pytest.approx(2 * size(new, "weights"), rel=1e-3)
    assert "float32" in {one.code for one in old.warnings}
    assert "float32" not in {one.code for one in new.warnings}
    told = start("transformers", version="4.50", context=2048, dtype="bfloat16")
    assert size(told, "weights") == size(new, "weights")


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(dp=2), Layout(ep=2)])
def test_transformers_splits_nothing_but_layers(layout: Layout) -> None:
    with pytest.raises(InputError, match="splits nothing else"):
        start("transformers", context=2048, layout=layout)


def test_cards_of_transformers_take_layers_in_turn() -> None:
    one, two = (start("transformers", context=2048, layout=Layout(pp=cards)) for cards in (1, 2))
    assert float(two.pool.bytes_per_token_per_gpu) == RATE / 2
    assert size(two, "weights") == pytest.approx((size(one, "weights") + 2 * 0) / 2, rel=0.05)
    table = start("transformers", context=2048, layout=Layout(tp=np.array([1, 2]), pp=np.array([1, 1])))
    assert float(table.pool.available_bytes[0]) == pytest.approx(float(one.pool.available_bytes))
    assert float(table.pool.available_bytes[1]) < 0
