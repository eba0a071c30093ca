"""Loads that are sent all at once, and none after them: first tokens wait for half of the others."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.figures import load_speed
from trilemma.measured.serving.speed.judge import judge
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import Row

TOLD = {
    "model": "llama-3.1-8b", "gpu": "a100-sxm-80gb", "gpus": "1", "tp": "1", "engine": "vllm", "isl": "217", "osl": "201",
    "metric": "ttft_ms", "value": "9000", "origin": "somebody/else", "tier": "B",
}  # fmt: skip
AT_ONCE = "line 90; prompts {} queued at once; statistic=mean"


def row(in_flight: int, notes: str = "", **cells: str) -> Row:
    return Row(id="one", line=1, cells=TOLD | {"concurrency_or_batch": str(in_flight), "notes": notes} | cells)


def seconds(in_flight: int, notes: str = "") -> float:
    (judgement,), _ = judge([row(in_flight, notes)])
    return judgement.comparisons[0].predicted / 1e3


def figures(in_flight: int) -> tuple[float, float, float]:
    """A steady load: seconds of its first tokens and of the wait for a slot among them, prompts a second that it answers."""
    question = read_speed_question(row(in_flight), None)
    (bench,) = benches_of([question])
    speed = load_speed(bench, bench.machine)
    slot, first, per_s = speed.first_lines["slot"], speed.ttft_s, speed.output_tokens_per_s
    return float(np.ravel(first)[0]), float(np.ravel(slot)[0]), float(np.ravel(per_s)[0]) / 201


@pytest.mark.parametrize(
    ("notes", "burst"),
    [
        (AT_ONCE.format(1000), True),
        (AT_ONCE.format(999), True),
        (AT_ONCE.format(5000), False),  # others follow
        ("prompts=1000; rate=inf", True),
        ("offline static batch, all requests at once", True),
        ("", False),
    ],
)
def test_rows_say_how_their_load_began(notes: str, burst: bool) -> None:
    assert read_speed_question(row(1000, notes), None).burst is burst
    assert read_speed_question(row(1000, notes, concurrency_or_batch="rate=4"), None).burst is False


def test_prompts_that_all_run_wait_for_half_of_the_others_not_for_a_few() -> None:
    """128 prompts of 217 tokens fit at once: the mean first token comes half way through their prefills."""
    steady, burst = seconds(128), seconds(128, AT_ONCE.format(128))
    assert burst > 2 * steady
    assert seconds(64, AT_ONCE.format(64)) == pytest.approx(burst / 2, rel=0.3)
    assert seconds(1, AT_ONCE.format(1)) == pytest.approx(seconds(1), rel=1e-6)


def test_prompts_that_do_not_fit_wait_for_half_of_those_ahead() -> None:
    """In a steady load each waits for all others that have no slot; of a burst the first wait for none of them."""
    many = 20_000
    steady, slot, _ = figures(many)
    assert slot > 0.9 * steady
    assert seconds(many, AT_ONCE.format(many)) / seconds(many) == pytest.approx(0.5, abs=0.06)


def test_rows_of_both_kinds_are_told_apart_in_one_table() -> None:
    rows = [row(128), row(128, AT_ONCE.format(128))]
    judgements, _ = judge(rows)
    steady, burst = (judgement.comparisons[0].predicted for judgement in judgements)
    assert (steady / 1e3, burst / 1e3) == (
        pytest.approx(seconds(128)),
        pytest.approx(seconds(128, AT_ONCE.format(128))),
    )
    questions = [read_speed_question(one, None) for one in rows]
    assert all(isinstance(one, SpeedQuestion) for one in questions)
    assert len(benches_of(questions)) == 1
