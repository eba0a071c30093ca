"""Every line that SGLang, TensorRT-LLM, llama.cpp and Transformers hold beside weights and cache, counted by hand.

Llama 3.1 8B: 32 layers, hidden 4,096, feed-forward 14,336, vocabulary 128,256, 8 KV heads of 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.verdict import stage_probabilities
from trilemma.hardware.catalogue import all_accelerators, find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB, MIB

_VERSIONS = {
    "vllm": "0.11.0",
    "sglang": "0.5.10",
    "tensorrt-llm": "1.2.1",
    "llama.cpp": "b10800",
    "transformers": "5.24",
}
_SERVERS = ("sglang", "tensorrt-llm")
_ALL_ON_CARDS = {"n-gpu-layers": "all", "fit": "off"}


def start(
    engine: str, model: str = "llama-3.1-8b", gpu: str = "h100-sxm", layout: Layout | None = None, *,
    version: str | None = None, **options: Any,
) -> StartUp:  # fmt: skip
    return engines.get(engine).start_up(
        model=load_model(model), accelerator=find(gpu), layout=layout or Layout(), options=ServeOptions(**options),
        version=version or _VERSIONS[engine],
    )  # fmt: skip


def line(found: StartUp, name: str) -> float:
    one = found.ledger.get(name)
    return 0.0 if one is None else float(one.bytes)


def passed(tokens: int, columns: int, *, hidden: int = 4096, engine: str = "sglang") -> float:
    """One pass in 16 bits: copies of the hidden rows and of the feed-forward columns, TensorRT-LLM's more than the rest."""
    rows, wide = (5.4, 3.2) if engine == "tensorrt-llm" else (2.5, 3.0)
    return tokens * 2 * (rows * hidden + wide * columns)


@pytest.mark.parametrize("engine", _SERVERS)
def test_communicators_go_by_the_cards_that_a_link_joins(engine: str) -> None:
    # A bridge joins two cards; four behind one link (H200 NVL) set up what cards behind a switch do.
    alone, bridged, linked = 0.5, 0.8, 2.4
    for gpu, expected in (
        ("h100-sxm", linked),
        ("h200-nvl", linked),
        ("h100-nvl-94gb", bridged),
        ("rtx-4090", bridged),
    ):
        assert line(start(engine, gpu=gpu), "context") == pytest.approx(alone * GIB), gpu
        for layout in (Layout(tp=2), Layout(pp=2)):
            assert line(start(engine, gpu=gpu, layout=layout), "context") == pytest.approx(expected * GIB), gpu
    several = start(engine, gpu="h100-sxm", layout=Layout(tp=np.array([1, 2, 4, 8])))
    assert np.asarray(several.ledger["context"].bytes) == pytest.approx(np.array([alone, linked, linked, linked]) * GIB)


def test_every_card_has_the_communicators_of_its_link() -> None:
    for card in all_accelerators():
        narrow = card.link is None or card.link.domain < 4
        found = engines.get("tensorrt-llm").start_up(
            model=load_model("llama-3.1-8b"),
            accelerator=card,
            layout=Layout(tp=2),
            options=ServeOptions(),
            version="1.2.1",
        )
        assert line(found, "context") == pytest.approx((0.8 if narrow else 2.4) * GIB), card.id


@pytest.mark.parametrize(("tp", "columns"), [(1, 14336), (2, 7168), (8, 1792)])
@pytest.mark.parametrize("engine", _SERVERS)
def test_a_pass_over_one_chunk(engine: str, tp: int, columns: int) -> None:
    found = start(engine, layout=Layout(tp=tp), max_batched_tokens=4096)
    assert line(found, "activations") == pytest.approx(passed(4096, columns, engine=engine))


def test_experts_of_a_pass_go_by_routed_rows() -> None:
    # Qwen3-30B-A3B: hidden 2,048, 128 experts of 768 columns, 8 of them a token, no dense or shared block.
    for tp, ep, dp, inner, share in ((1, 1, 1, 768, 1), (2, 1, 1, 384, 1), (1, 4, 4, 768, 4)):
        extra = {"enable-dp-attention": True} if dp > 1 else {}
        found = start(
            "sglang", "qwen3-30b-a3b", layout=Layout(tp=tp, ep=ep, dp=dp), max_batched_tokens=4096, extra=extra
        )
        routed = 4096 * 2 * 8 / share * (max(2 * inner, 2048) + inner)
        assert line(found, "activations") == pytest.approx(passed(4096, 0, hidden=2048) + routed)


def test_sglang_counts_at_least_2048_tokens_of_a_pass() -> None:
    assert line(start("sglang", max_batched_tokens=512), "activations") == pytest.approx(passed(2048, 14336))


def sglang_sizes(largest: int) -> list[int]:
    """Batch sizes that SGLang captures (model_executor/cuda_graph_runner.py, get_batch_sizes_to_capture)."""
    every = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16), *range(544, 4097, 32)]
    return [size for size in every if size <= largest]


@pytest.mark.parametrize("largest", [1, 2, 4, 8, 16, 160, 256, 288, 512, 576])
def test_sglang_graphs_by_the_sizes_captured(largest: int) -> None:
    decode = {"cuda_graph_sizes": (largest,), "extra": {"cuda-graph-backend-prefill": "disabled"}}
    found = start("sglang", **decode)
    assert line(found, "cuda_graphs") == pytest.approx(0.05 * GIB + 0.17 * MIB * 32 * len(sglang_sizes(largest)))
    assert line(found, "logits") == largest * 128256 * 4
    halves = start("sglang", layout=Layout(pp=2), **decode)
    assert line(halves, "cuda_graphs") == pytest.approx(0.05 * GIB + 0.17 * MIB * 16 * len(sglang_sizes(largest)))


def test_graphs_of_a_mixture_grow_with_the_largest_batch() -> None:
    one, two = (start("sglang", "qwen3-30b-a3b", cuda_graph_sizes=(size,)) for size in (16, 17))
    assert line(two, "cuda_graphs") - line(one, "cuda_graphs") == pytest.approx(0.021 * GIB)


@pytest.mark.parametrize("engine", _SERVERS)
def test_eager_runs_capture_nothing(engine: str) -> None:
    assert line(start(engine, eager=True), "cuda_graphs") == 0
    assert line(start(engine), "cuda_graphs") > 0.2 * GIB


def test_sglang_table_of_the_tokens_of_each_request() -> None:
    found = start("sglang", context=8192, max_seqs=64)
    assert found.max_seqs == 64
    assert line(found, "workspace") == 64 * (8192 + 4) * 4


def test_tensorrt_llm_outside_pytorch() -> None:
    assert line(start("tensorrt-llm"), "workspace") == 1.0 * GIB
    assert line(start("tensorrt-llm", layout=Layout(tp=2)), "workspace") == 2.5 * GIB
    built = start("tensorrt-llm", max_batched_tokens=4096, max_seqs=64, extra={"backend": "tensorrt"})
    assert line(built, "workspace") == pytest.approx(0.5 * GIB)
    assert line(built, "activations") == pytest.approx(passed(4096, 14336, engine="tensorrt-llm"))
    assert line(built, "logits") == pytest.approx(4.5 * 64 * 128256 * 4)
    assert line(built, "cuda_graphs") == 0


@pytest.mark.parametrize(("seqs", "context", "rows"), [(8, 512, 8), (256, 512, 16), (256, 3000, 3), (256, 131072, 1)])
def test_tensorrt_llm_logits_of_the_prompts_that_a_profiled_pass_ends(seqs: int, context: int, rows: int) -> None:
    found = start("tensorrt-llm", max_seqs=seqs, context=context, max_batched_tokens=8192)
    assert line(found, "logits") == rows * 128256 * 4


def test_tensorrt_llm_graphs() -> None:
    found = start("tensorrt-llm", cuda_graph_sizes=(1, 64))
    assert line(found, "cuda_graphs") == pytest.approx(0.3 * GIB + 0.17 * MIB * 32 * (64 // 8 + 3))
    asked = start("tensorrt-llm", extra={"cuda_graph_config": {"max_batch_size": 64}})
    assert line(asked, "cuda_graphs") == line(found, "cuda_graphs")


def test_tensorrt_llm_pool_is_a_share_of_what_is_free() -> None:
    found = start("tensorrt-llm", memory_fraction=0.5)
    held = sum(float(one.bytes) for one in found.ledger if one.name != "kv_cache")
    free = float(found.capacity_bytes) - held
    rate = 32 * 2 * 8 * 128 * 2
    assert float(found.pool.bytes_per_token_per_gpu) == rate
    assert float(found.pool.tokens) == np.floor(0.5 * free / (rate * 32)) * 32
    assert line(found, "kv_cache") == float(found.pool.tokens) * rate


def test_tensorrt_llm_states_take_half_at_most() -> None:
    few, many = (start("tensorrt-llm", "qwen3-next-80b-a3b", "h200-sxm", Layout(tp=2), max_seqs=n) for n in (4, 2048))
    others = [
        sum(float(one.bytes) for one in found.ledger if one.name not in ("kv_cache", "state_cache"))
        for found in (few, many)
    ]
    # 36 gated delta layers: 16 of 32 value heads of 128 x 128 in 32 bits, and 3 columns of a convolution over 4,096 channels.
    state = 36 * (16 * 128 * 128 * 4 + 3 * 4096 * 2)
    assert line(few, "state_cache") == pytest.approx(4 * state, rel=0.5)
    assert line(few, "state_cache") < 0.1 * line(few, "kv_cache")
    assert line(many, "state_cache") <= 0.5 * (float(many.capacity_bytes) - others[1]) * (1 + 1e-9)


@pytest.mark.parametrize(("context", "slots", "cells"), [(512, 1, 512), (1000, 1, 1024), (1000, 3, 3072)])
def test_llama_cpp_cells_are_padded(context: int, slots: int, cells: int) -> None:
    found = start("llama.cpp", gpu="rtx-4090", context=context, max_seqs=slots, extra=_ALL_ON_CARDS)
    assert line(found, "kv_cache") == cells * 32 * 2 * 8 * 128 * 2


def test_llama_cpp_compute_buffer() -> None:
    # The mask in 16 bits with flash attention and 32 without, scores of 32 heads without; hidden rows and columns in 32 bits.
    fused = start("llama.cpp", gpu="rtx-4090", context=4096, max_seqs=1, extra=_ALL_ON_CARDS | {"flash-attn": "on"})
    rows = 512 * 4096 * 4 + 512 * 14336 * 4 + 32 * MIB
    assert line(fused, "activations") == 512 * 4096 * 2 + rows
    apart = start("llama.cpp", gpu="rtx-4090", context=4096, max_seqs=1, extra=_ALL_ON_CARDS | {"flash-attn": "off"})
    assert line(apart, "activations") == 512 * 4096 * 4 + rows + 512 * 4096 * 32 * 4
    assert line(apart, "logits") == 512 * 128256 * 4
    assert line(apart, "context") == pytest.approx(0.3 * GIB)


def test_llama_cpp_cards_in_turn_keep_four_copies() -> None:
    one, two = (
        start("llama.cpp", gpu="rtx-4090", layout=Layout(pp=cards), context=4096, max_seqs=1,
              extra=_ALL_ON_CARDS | {"flash-attn": "on"})
        for cards in (1, 2)
    )  # fmt: skip
    assert line(two, "activations") - line(one, "activations") == 3 * (512 * 4096 * 2 + 512 * 4096 * 4)


def test_llama_cpp_rows_share_weights_and_not_the_cache() -> None:
    one, two = (
        start("llama.cpp", gpu="rtx-4090", layout=Layout(tp=cards), context=4096, max_seqs=1, extra=_ALL_ON_CARDS)
        for cards in (1, 2)
    )
    assert line(two, "weights") == pytest.approx(line(one, "weights") / 2)
    assert line(two, "kv_cache") == line(one, "kv_cache")


def test_transformers_caches_windows_at_full_length() -> None:
    # Gemma 3 27B: 62 layers of 2 x 16 x 128 elements of 2 bytes, sliding ones too, in the dynamic cache that is grown.
    found = start("transformers", "gemma-3-27b", "h200-sxm", context=8192)
    assert float(found.pool.bytes_per_token_per_gpu) == 62 * 2 * 16 * 128 * 2
    assert line(found, "kv_cache") == 8192 * 62 * 2 * 16 * 128 * 2


def test_transformers_lines_of_a_prompt() -> None:
    found = start("transformers", context=4096)
    assert line(found, "activations") == pytest.approx(passed(4096, 14336))
    assert line(found, "logits") == 128256 * 4
    assert line(found, "workspace") == 4096 * 2 * 8 * 128 * 2
    assert line(found, "fragmentation") == pytest.approx(0.05 * (line(found, "activations") + line(found, "logits")))
    assert line(found, "context") == pytest.approx(0.5 * GIB)
    paged = start("transformers", context=4096, extra={"continuous-batching": True})
    assert line(paged, "workspace") == 0
    assert line(paged, "activations") == pytest.approx(passed(8192, 14336))


def test_old_transformers_keep_logits_of_the_whole_prompt() -> None:
    old, new = (start("transformers", version=version, context=4096, dtype="bfloat16") for version in ("4.40", "5.24"))
    assert line(old, "logits") == 4096 * line(new, "logits")


def test_vocabularies_are_padded_as_the_engine_pads() -> None:
    # Code Llama 7B: 32,016 rows of 4,096 in the embedding and in the head; a multiple of 64 is 32,064.
    rows = {
        engine: line(start(engine, "codellama-7b"), "weights") for engine in ("sglang", "transformers", "tensorrt-llm")
    }
    assert rows["tensorrt-llm"] - rows["transformers"] == 48 * 2 * 4096 * 2
    assert rows["sglang"] - rows["tensorrt-llm"] == 16384 * 128 * 4  # its table of rotations


@pytest.mark.parametrize("engine", ["vllm", *_SERVERS])
def test_more_ranks_never_hold_more(engine: str) -> None:
    for model in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite"):
        found = start(engine, model, "h200-sxm", Layout(tp=np.array([1, 2, 4, 8])))
        for name in ("weights", "activations"):
            held = np.asarray(found.ledger[name].bytes, dtype=float)
            assert np.all(np.diff(held) <= 1), (model, name)
        stages = start(engine, model, "h200-sxm", Layout(pp=np.array([1, 2, 4])))
        assert np.all(np.diff(np.asarray(stages.ledger["weights"].bytes, dtype=float)) < 0), model


@pytest.mark.parametrize("engine", ["vllm", *_SERVERS, "llama.cpp", "transformers"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b"])
def test_bounds_stand_about_every_line(engine: str, model: str) -> None:
    found = start(engine, model, "h200-sxm", context=8192, max_seqs=4)
    for one in found.ledger:
        assert 0 <= float(one.low) <= float(one.bytes) <= float(one.high), one.name
    loose = [one.name for one in found.ledger if float(one.bytes) > 0 and float(one.low) < float(one.bytes)]
    assert {"activations", "context", "weights"} <= set(loose)


def test_half_widths_of_the_lines() -> None:
    found = start("sglang")
    sides = {one.name: (float(one.high) - float(one.bytes)) for one in found.ledger}
    assert sides["context"] == pytest.approx(0.6 * 0.5 * GIB)
    assert sides["weights"] == pytest.approx(np.hypot(0.012 * line(found, "weights"), 0.5 * GIB))
    assert sides["logits"] == pytest.approx(0.6 * line(found, "logits"))
    assert sides["workspace"] == pytest.approx(0.4 * line(found, "workspace"))
    assert sides["activations"] == pytest.approx(np.hypot(0.5 * GIB, 0.6 * line(found, "activations")))
    assert sides["cuda_graphs"] == pytest.approx(np.hypot(0.3 * GIB, 0.7 * line(found, "cuda_graphs")))


def test_odds_of_weights_that_barely_fit() -> None:
    # Weights and context equal to the card: even odds. Half a 90 % half-width more than the card: Φ(0.5 · 1.645) = 0.7946.
    found = start("tensorrt-llm", max_seqs=8)
    half = (float(found.ledger["weights"].high) - float(found.ledger["weights"].low)) / 2
    peak = float(found.load_peak_bytes)
    for beyond, chance in ((0.0, 0.5), (0.5, 0.7946), (-1.0, 0.05), (1.0, 0.95)):
        at = engines.get("tensorrt-llm").start_up(
            model=load_model("llama-3.1-8b"), accelerator=find("h100-sxm"), layout=Layout(), options=ServeOptions(max_seqs=8),
            version="1.2.1", capacity_bytes=peak - beyond * half,
        )  # fmt: skip
        assert float(stage_probabilities(at)["oom_load"]) == pytest.approx(chance, abs=0.001)
        assert sum(float(one) for one in stage_probabilities(at).values()) == pytest.approx(1.0)
