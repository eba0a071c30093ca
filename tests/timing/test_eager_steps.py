"""Decode steps whose kernels no graph replays: the host launches each."""

from __future__ import annotations

import pytest

import trilemma as tl


@pytest.mark.parametrize(
    ("model", "card", "per_s"),
    [
        ("gpt-oss-120b", "gb10", 26),  # conselara.dev/notes/dgx-spark-benchmarks, vLLM 0.19: 59 with graphs
        ("qwen3-30b-a3b", "a10:4", 20),  # vllm-project/vllm issue 17469, vLLM 0.8.5
    ],
)
def test_one_reader_without_graphs(model: str, card: str, per_s: float) -> None:
    graphs, eager = (
        tl.fit(model, card, isl=256, osl=256, concurrency=1, eager=one).speed.tpot_s.interval for one in (False, True)
    )
    assert 1 / eager.value == pytest.approx(per_s, rel=0.3)
    assert eager.low <= 1 / per_s <= eager.high
    assert graphs.value < 0.75 * eager.value
    assert eager.high / eager.low > graphs.high / graphs.low


def test_what_the_card_takes_longer_for_hides_the_launches() -> None:
    """64 running requests of 30,000 tokens: reading the cache takes longer than launching."""
    options = {"isl": 30000, "osl": 256, "concurrency": 32}
    graphs, eager = (
        tl.fit("llama-3.1-8b", "h200-sxm", eager=one, **options).speed.tpot_s.interval.value for one in (False, True)
    )
    assert eager == pytest.approx(graphs, rel=0.02)


def test_a_search_without_graphs_times_its_plans_so() -> None:
    options = {"isl": 512, "osl": 256, "concurrency": 8}
    graphs, eager = (tl.plan("qwen3-0.6b", "l40s", eager=one, **options).plans[0] for one in (False, True))
    asked = tl.fit("qwen3-0.6b", "l40s", eager=True, **options)
    assert eager.speed.tpot_s.interval.value > 2 * graphs.speed.tpot_s.interval.value
    assert eager.speed.tpot_s.interval.value == pytest.approx(asked.speed.tpot_s.interval.value, rel=0.02)
