"""vLLM's start-up budget against printed start-up lines, and the rules that every budget obeys."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB

#: Settings of the H100 campaign in llm-d-planner pull request 205 (vLLM 0.19).
_H100 = {"memory_fraction": 0.95, "max_seqs": 1024, "max_batched_tokens": 8192}


def _start(
    model: str,
    *,
    gpu: str = "h100-sxm",
    layout: Layout | None = None,
    version: str = "0.19.0",
    draft: Draft | None = None,
    **options: Any,
) -> StartUp:
    return engines.get("vllm").start_up(
        model=load_model(model),
        accelerator=find(gpu),
        layout=layout or Layout(),
        options=ServeOptions(**options),
        draft=draft,
        version=version,
    )


def _gib(start: StartUp, *names: str) -> float:
    return float(sum(line.bytes for name in names if (line := start.ledger.get(name)) is not None)) / GIB


@pytest.mark.parametrize(
    ("model", "layout", "kv", "weights", "peak", "non_torch", "cache", "tokens", "concurrency"),
    [
        ("llama-3.1-8b", Layout(), "auto", 14.99, 1.89, 0.25, 58.11, 476016, 58.11),
        ("llama-3.1-8b", Layout(), "fp8", 14.99, 1.89, 0.25, 58.11, 952032, 116.21),
        ("llama-3.1-8b", Layout(tp=2), "auto", 7.51, 1.89, 2.07, 63.76, 1044688, 127.53),
        ("llama-3.1-8b", Layout(tp=4), "auto", 3.77, 1.89, 2.13, 67.44, 2209792, 269.75),
        ("qwen2.5-7b", Layout(), "auto", 14.25, 2.21, 0.24, 58.53, 1096000, 133.79),
        ("qwen2.5-7b", Layout(tp=4), "auto", 3.55, 2.21, 2.13, 67.34, 5043280, 615.63),
        ("qwen2.5-72b", Layout(tp=2), "auto", 67.8, 2.29, 2.09, 3.04, 19920, 2.43),
        ("gemma-2-27b", Layout(), "auto", 50.72, 3.66, 0.26, 20.59, 58672, 7.16),
        ("codellama-7b", Layout(), "auto", 12.56, 0.77, 0.25, 61.66, 126256, 15.41),
        ("granite-3.3-8b", Layout(), "auto", 15.25, 0.85, 0.46, 58.66, 384432, 46.93),
    ],
)
def test_printed_lines_of_one_campaign(
    model: str, layout: Layout, kv: str, weights: float, peak: float, non_torch: float, cache: float, tokens: int,
    concurrency: float,
) -> None:  # fmt: skip
    """Start-up logs of vLLM 0.19 on an H100 (llm-d-planner pull request 205), 8192 tokens."""
    start = _start(model, layout=layout, context=8192, kv_dtype=kv, **_H100)
    assert _gib(start, "weights") == pytest.approx(weights, rel=0.008)
    assert _gib(start, "activations", "logits") == pytest.approx(peak, abs=0.15)
    assert _gib(start, "workspace", "communication") == pytest.approx(non_torch, abs=0.25)
    assert float(start.pool.available_bytes) / GIB == pytest.approx(cache, abs=0.3)
    assert start.pool.available_low_bytes <= cache * GIB <= start.pool.available_high_bytes
    given_bytes = _start(model, layout=layout, context=8192, kv_dtype=kv, kv_cache_bytes=int(cache * GIB), **_H100)
    assert given_bytes.pool.tokens == pytest.approx(tokens, rel=0.003)
    assert given_bytes.pool.concurrency == pytest.approx(concurrency, rel=0.003)


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "printed"),
    [
        ("gpt-oss-120b", "h100-sxm", 1, 65.97),  # vllm-project/vllm issue 23278
        ("gpt-oss-20b", "a100-sxm-80gb", 1, 13.72),  # vLLM 0.19 on an A100
        ("gpt-oss-20b", "h100-sxm", 2, 7.01),  # llm-d-planner pull request 205
        ("gemma-3-4b", "h100-sxm", 1, 8.58),
        ("qwen3-14b", "h100-sxm", 1, 27.52),
    ],
)
def test_loaded_weights_are_more_than_the_checkpoint(model: str, gpu: str, tp: int, printed: float) -> None:
    """Padded experts, rope tables and vision towers load too."""
    start = _start(model, gpu=gpu, layout=Layout(tp=tp), context=8192)
    assert _gib(start, "weights", "vision") == pytest.approx(printed, rel=0.013)


def test_sampler_of_older_versions_needs_more() -> None:
    """Qwen3-14B on an H100: 5.64 GiB with 0.15, 2.23 with 0.17 (llm-d-planner pull request 205)."""
    peaks = {
        version: _gib(_start("qwen3-14b", version=version, context=8192, memory_fraction=0.95), "activations", "logits")
        for version in ("0.15.0", "0.17.0")
    }
    assert peaks["0.15.0"] == pytest.approx(5.64, abs=0.3)
    assert peaks["0.17.0"] == pytest.approx(2.23, abs=0.1)


def test_lines_sum_to_what_the_engine_gives_itself() -> None:
    start = _start("llama-3.1-8b", context=8192, **_H100)
    assert start.ledger.total("inside") == pytest.approx(start.budget_bytes, abs=1)
    assert start.budget_bytes == pytest.approx(0.95 * start.capacity_bytes)
    assert start.ledger.total() == pytest.approx(start.ledger.total("inside") + start.ledger.total("outside"))
    assert next(iter(start.ledger)).name == "weights"
    assert all(line.low <= line.bytes <= line.high for line in start.ledger)


def test_graphs_count_in_the_budget_since_0_21() -> None:
    before, after = (_start("qwen3-30b-a3b", version=version, context=8192) for version in ("0.20.0", "0.22.0"))
    assert before.ledger["cuda_graphs"].budget == "outside"
    assert after.ledger["cuda_graphs"].budget == "inside"
    assert _start("qwen3-30b-a3b", context=8192, eager=True).ledger.get("cuda_graphs") is None


def test_defaults_follow_card_and_version() -> None:
    large, small = (_start("llama-3.1-8b", gpu=gpu, version="0.19.0", context=8192) for gpu in ("h100-sxm", "l4"))
    assert (large.max_seqs, large.max_batched_tokens) == (1024, 8192)
    assert (small.max_seqs, small.max_batched_tokens) == (256, 2048)
    assert (large.memory_fraction, _start("llama-3.1-8b", version="0.33.0").memory_fraction) == (0.9, 0.92)
    whole_prompts = _start("llama-3.1-8b", version="0.6.0", context=16384)
    assert whole_prompts.max_batched_tokens == 16384
    assert _start("llama-3.1-8b", version="0.6.0", context=65536).max_batched_tokens == 512


def test_float32_doubles_weights_and_cache() -> None:
    half, full = (_start("llama-3.1-8b", context=8192, dtype=dtype) for dtype in ("bfloat16", "float32"))
    assert full.ledger["weights"].bytes == pytest.approx(2 * half.ledger["weights"].bytes)
    assert full.pool.bytes_per_token_per_gpu == 2 * half.pool.bytes_per_token_per_gpu == 262144


def test_text_only_leaves_the_vision_tower_out() -> None:
    whole, text = (_start("gemma-3-27b", context=8192, text_only=flag) for flag in (False, True))
    assert text.ledger.get("vision") is None
    assert text.pool.available_bytes > whole.pool.available_bytes


def test_draft_layers_cost_weights_and_cache() -> None:
    plain = _start("glm-5.1-fp8", gpu="b200", layout=Layout(tp=8), context=8192, version="0.22")
    drafting = _start(
        "glm-5.1-fp8", gpu="b200", layout=Layout(tp=8), context=8192, version="0.22", draft=Draft(method="mtp")
    )
    assert drafting.ledger["draft_model"].bytes > 0
    assert (plain.pool.bytes_per_token_per_gpu, drafting.pool.bytes_per_token_per_gpu) == (78 * 788, 79 * 788)


def test_data_parallel_replicas_spread_experts_and_copy_attention() -> None:
    alone = _start("deepseek-v3.1", gpu="h200-sxm", layout=Layout(tp=8), context=8192)
    spread = _start("deepseek-v3.1", gpu="h200-sxm", layout=Layout(tp=1, dp=8, ep=8), context=8192)
    assert 1.02 < spread.ledger["weights"].bytes / alone.ledger["weights"].bytes < 1.4


def test_tightest_pipeline_stage_counts() -> None:
    """Llama-3.1-8B on two stages prints 1,075,312 tokens, on four 2,257,264: the last stage holds the logits."""
    for pp, tokens in ((2, 1075312), (4, 2257264)):
        start = _start("llama-3.1-8b", layout=Layout(pp=pp), context=8192, **_H100)
        assert start.pool.tokens == pytest.approx(tokens, rel=0.003)
        assert start.ledger["logits"].bytes > 0


def test_unknown_versions_use_the_newest_facts_widened() -> None:
    known, newer = (_start("llama-3.1-8b", version=version, context=8192) for version in ("0.33.0", "0.99.0"))
    assert newer.pool.available_bytes == known.pool.available_bytes
    assert newer.spread_bytes > known.spread_bytes
    assert any(warning.code == "newer-engine" for warning in newer.warnings)
    assert any(warning.code == "assumed-engine-version" for warning in _start("llama-3.1-8b", version="").warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_fraction": 1.5}, "gpu-memory-utilization 1.5"),
        ({"memory_fraction": 0.0}, "gpu-memory-utilization 0.0"),
        ({"context": -1}, "max-model-len -1"),
        ({"kv_dtype": "fp9"}, "unknown KV cache type 'fp9'"),
        ({"max_seqs": 0}, "max-num-seqs"),
    ],
)
def test_values_that_no_engine_accepts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _start("llama-3.1-8b", **options)


_LAYOUTS = st.tuples(*(st.sampled_from(values) for values in ((1, 2, 4, 8), (1, 2, 4), (1, 2), (1, 4))))
_MODELS = ("llama-3.1-70b", "gemma-3-27b", "qwen3.5-27b", "deepseek-v3.1", "gpt-oss-20b", "deepseek-v4-flash")


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    model=st.sampled_from(_MODELS), rows=st.lists(_LAYOUTS, min_size=2, max_size=6), seqs=st.sampled_from((1, 64, 1024))
)
def test_a_table_of_plans_equals_its_plans(model: str, rows: list[tuple[int, ...]], seqs: int) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    ep = np.where((columns[3] > 1) & (model == "deepseek-v3.1"), columns[0] * columns[2], 1)
    table = _start(
        model,
        gpu="b200",
        layout=Layout(tp=columns[0], pp=columns[1], dp=columns[2], ep=ep),
        context=4096,
        max_seqs=seqs,
    )
    for index, row in enumerate(rows):
        layout = Layout(tp=row[0], pp=row[1], dp=row[2], ep=int(ep[index]))
        single = _start(model, gpu="b200", layout=layout, context=4096, max_seqs=seqs)
        for field in dataclasses.fields(single.pool):
            one, many = getattr(single.pool, field.name), np.asarray(getattr(table.pool, field.name))
            assert float(many[index]) == pytest.approx(float(one), rel=1e-12), field.name
        assert table.ledger.total("inside")[index] == pytest.approx(single.ledger.total("inside"), rel=1e-12)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(model=st.sampled_from(_MODELS), tokens=st.sampled_from((512, 2048, 16384)), seqs=st.sampled_from((8, 256)))
def test_more_ranks_never_hold_more_each(model: str, tokens: int, seqs: int) -> None:
    """Communication apart, no line grows with tensor parallelism."""
    degrees = np.array([1, 2, 4, 8])
    table = _start(model, layout=Layout(tp=degrees), context=4096, max_seqs=seqs, max_batched_tokens=tokens)
    for name in ("weights", "activations", "logits", "cuda_graphs"):
        assert np.all(np.diff(table.ledger[name].bytes) <= 1), name
    assert np.all(np.diff(table.pool.bytes_per_token_per_gpu) <= 1)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(model=st.sampled_from(_MODELS), fractions=st.tuples(st.floats(0.3, 1.0), st.floats(0.3, 1.0)))
def test_a_larger_fraction_never_leaves_less(model: str, fractions: tuple[float, float]) -> None:
    low, high = (_start(model, layout=Layout(tp=8), context=4096, memory_fraction=f) for f in sorted(fractions))
    assert high.pool.available_bytes >= low.pool.available_bytes
    assert high.pool.blocks >= low.pool.blocks
    assert high.pool.max_context >= low.pool.max_context


def test_a_draft_model_brings_its_weights_and_its_cache() -> None:
    """Llama-3.2-1B drafting for the 70B: 1.2 billion parameters, and 16 layers of eight heads of 64."""
    plain, drafting, head = (
        _start("llama-3.1-70b", layout=Layout(tp=4), context=8192, draft=draft)
        for draft in (
            None,
            Draft(method="draft", model="llama-3.2-1b", tokens=4),
            Draft(method="eagle", model="llama-3.2-1b", tokens=4),
        )
    )
    assert drafting.ledger["draft_model"].bytes == pytest.approx(1.2358e9 * 2 / 4, rel=0.01)
    assert head.ledger["draft_model"].bytes < 0.85 * drafting.ledger["draft_model"].bytes
    assert drafting.pool.bytes_per_token_per_gpu - plain.pool.bytes_per_token_per_gpu == 16 * 2 * 2 * 64 * 2
    assert drafting.pool.available_bytes < plain.pool.available_bytes


@pytest.mark.parametrize(
    "draft", [Draft(method="mtp"), Draft(method="eagle3"), Draft(method="eagle3", model="nobody/knows-this-head")]
)
def test_drafts_that_cannot_be_counted_are_said(draft: Draft) -> None:
    start = _start("llama-3.1-8b", context=8192, draft=draft)
    assert any(warning.code == "draft-not-counted" for warning in start.warnings)
    assert start.ledger.get("draft_model") is None


def test_given_cache_bytes_set_the_budget() -> None:
    start = _start("llama-3.1-8b", context=8192, kv_cache_bytes=10 * GIB)
    assert start.pool.available_bytes == 10 * GIB
    assert start.ledger.total("inside") == pytest.approx(start.budget_bytes)


def test_error_bars_of_weights_go_by_how_well_a_checkpoint_is_known() -> None:
    exact, stated = (_start(name, context=8192) for name in ("qwen3-32b", "qwen3-32b-fp8"))
    base = load_model("qwen3-32b")
    assumed = [
        engines.get("vllm").start_up(
            model=requantize(base, scheme), accelerator=find("h100-sxm"), layout=Layout(), version="0.19.0",
            options=ServeOptions(context=8192),
        )
        for scheme in ("fp8", "awq")
    ]  # fmt: skip
    widths = [start.ledger["weights"].high / start.ledger["weights"].bytes - 1 for start in (exact, stated, *assumed)]
    assert widths == sorted(widths)
    assert widths[0] < 0.01 < 0.07 < widths[-1]


def test_quantisation_at_load() -> None:
    """Llama-3.1-8B with ``--quantization fp8``: 8.49 GiB and 64.61 for the cache (llm-d-planner pull request 205)."""
    narrow = _start("llama-3.1-8b", context=8192, quantization="fp8", **_H100)
    assert _gib(narrow, "weights") == pytest.approx(8.49, rel=0.01)
    assert float(narrow.pool.available_bytes) / GIB == pytest.approx(64.61, abs=0.3)
    old, new = (
        _start("llama-3.1-8b", context=8192, quantization="fp8", version=version) for version in ("0.10.0", "0.19.0")
    )
    assert old.load_peak_bytes > 1.6 * new.load_peak_bytes
    other = _start("llama-3.1-8b", context=8192, quantization="awq")
    assert any(warning.code == "quantization-not-counted" for warning in other.warnings)


def test_automatic_context_is_what_the_pool_holds() -> None:
    fixed = _start("qwen2.5-7b", gpu="l4", version="0.28.0")
    fitted = _start("qwen2.5-7b", gpu="l4", version="0.28.0", extra={"max-model-len": "auto"})
    assert fixed.pool.need_bytes <= fixed.pool.available_bytes
    assert fitted.context == fixed.context == 32768
    small = _start("llama-3.1-8b", gpu="l4", version="0.28.0", extra={"max-model-len": "auto"})
    assert small.context < 131072
    assert small.pool.concurrency >= 1
    assert small.pool.max_context == pytest.approx(small.context, abs=16)
