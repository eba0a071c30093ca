"""Rows of submissions that name neither layout nor rate: replicas of the fewest cards, everything queued."""

from __future__ import annotations

import pytest

from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import Row, UnusableRow


def question(**cells: str) -> SpeedQuestion:
    told = {
        "model": "llama2-70b-99.9", "gpu": "NVIDIA H100-SXM-80GB", "gpus": "8", "engine": "tensorrt-llm", "isl": "294",
        "osl": "294", "concurrency_or_batch": "scenario=Offline", "metric": "output_tok_s_total", "value": "31000", "tier": "B",
    }  # fmt: skip
    kept = {name: value for name, value in {**told, **cells}.items() if value}
    return read_speed_question(Row(id="row", line=1, cells=kept), None)


@pytest.mark.parametrize(
    ("precision", "gpu", "ranks"),
    [("fp8", "h100-sxm", 2), ("", "h100-sxm", 4), ("fp8", "h200-sxm", 1), ("fp4", "b200", 1), ("fp8", "l40s", 4)],
)
def test_replicas_are_the_fewest_cards_that_hold_the_weights(precision: str, gpu: str, ranks: int) -> None:
    """Llama-2-70B: 69 GB in FP8, 138 in BF16; 70 % of 79, 140, 177 and 44 GiB."""
    asked = question(precision_weights=precision, gpu=gpu)
    assert (int(asked.layout.tp), int(asked.layout.dp)) == (ranks, 8 // ranks)
    assert any(f"{8 // ranks} replicas of {ranks} GPUs" in note for note in asked.assumed)


def test_a_layout_that_is_stated_stays() -> None:
    assert int(question(tp="8", precision_weights="fp8").layout.tp) == 8
    assert int(question(precision_weights="fp8", concurrency_or_batch="64").layout.tp) == 8


@pytest.mark.parametrize("scenario", ["scenario=Server", "scenario=Interactive"])
def test_rates_under_limits_are_judged_as_all_queued_and_never_fitted(scenario: str) -> None:
    asked = question(concurrency_or_batch=scenario, precision_weights="fp8", model="llama2-70b-interactive-99")
    assert (asked.kind, asked.trust) == ("queued", 0.0)
    assert any("limits of latency" in note for note in asked.assumed)
    assert question().trust > 0


def test_other_scenarios_are_refused() -> None:
    with pytest.raises(UnusableRow, match="a rate that the row does not state"):
        question(concurrency_or_batch="scenario=MultiStream")
