"""Qwen3-32B, one sequence, 16-bit cache, the engine's own memory fraction: what three single cards can do.

The bounds are arithmetic over the checkpoint's published sizes (weights: 61.0 GiB at 16 bits, about 32 at FP8, 18 to 19.3
at 4 bits; 262,144 B of cache per token = 64 layers x 2 x 8 heads x 128 x 2 B) and the cards' runtime totals.
"""

from __future__ import annotations

import pytest

from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Plan, Pool, ServeOptions
from trilemma.question import Question
from trilemma.workloads import Serving

QWEN = load_model("Qwen/Qwen3-32B")
BYTES_PER_TOKEN = 262_144


def on_card(gpu: str, precision: str, *, context: int | None = None, kv_dtype: str | None = None) -> Estimate:
    plan = Plan(pools=(Pool(options=ServeOptions(max_seqs=1, context=context, kv_dtype=kv_dtype)),))
    cluster = Cluster(accelerator=find(gpu), gpus=1, gpus_per_node=1)
    return estimate(Question(model=requantize(QWEN, precision), cluster=cluster, workload=Serving(), plan=plan))


@pytest.mark.parametrize("gpu", ["rtx-4090", "rtx-5090"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_wider_than_four_bits_is_refused_on_gaming_cards(gpu: str, precision: str) -> None:
    answer = on_card(gpu, precision, context=1024)
    assert answer.verdict.stage == "oom_load"
    assert answer.verdict.probability > 0.95


def test_sixteen_bits_are_refused_on_l40s() -> None:
    assert not on_card("l40s", "bf16", context=1024).fits


@pytest.mark.parametrize(
    ("gpu", "precision", "low", "high"),
    [("rtx-4090", "awq", 6_000, 12_500), ("rtx-5090", "awq", 30_000, 42_000), ("l40s", "fp8", 22_000, 34_000)],
)
def test_longest_context_of_what_runs(gpu: str, precision: str, low: int, high: int) -> None:
    answer = on_card(gpu, precision, context=low)
    assert answer.fits
    assert answer.cache is not None
    assert answer.cache.bytes_per_token == BYTES_PER_TOKEN
    assert low <= answer.cache.max_context <= high
    assert f"--max-model-len {low}" in answer.command


@pytest.mark.parametrize(("gpu", "precision"), [("rtx-4090", "awq"), ("rtx-5090", "awq"), ("l40s", "fp8")])
def test_fp8_cache_doubles_the_tokens(gpu: str, precision: str) -> None:
    wide, narrow = on_card(gpu, precision, context=4096), on_card(gpu, precision, context=4096, kv_dtype="fp8")
    assert wide.cache is not None
    assert narrow.cache is not None
    assert narrow.cache.tokens.value == pytest.approx(2 * wide.cache.tokens.value, rel=0.01)
    assert narrow.fits
    assert "--kv-cache-dtype fp8" in narrow.command
