"""Rows of old releases are told as old as they are, by their release or by the year that they state in its place."""

from __future__ import annotations

import datetime
import math

import pytest

from trilemma.hardware.catalogue import find
from trilemma.measured.serving.speed.judge import judge
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import Row
from trilemma.timing.eras import Era, age_of, age_within, with_age

TOLD = {
    "model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": "1", "tp": "1", "engine": "vllm", "isl": "1024", "osl": "128",
    "concurrency_or_batch": "8", "metric": "tpot_ms", "value": "9", "origin": "somebody/else", "tier": "B",
}  # fmt: skip
H100 = find("h100-sxm")


def row(**cells: str) -> Row:
    return Row(id="one", line=1, cells=TOLD | cells)


def asked(**cells: str) -> SpeedQuestion:
    return read_speed_question(row(**cells), None)


def predicted(**cells: str) -> tuple[float, float, float]:
    (judgement,), _ = judge([row(**cells)])
    (figure,) = judgement.comparisons
    assert figure.low is not None
    assert figure.high is not None
    return figure.predicted, figure.predicted / figure.low, figure.high / figure.predicted


@pytest.mark.parametrize(
    "version",
    ["0.7.3", "v0.7.3", "vllm/vllm-openai:v0.7.3", "0.7.3 (read off a log)", "2024-Q4", "2024-Q4 (not stated)"],
)
def test_a_release_is_known_by_its_number_or_its_time(version: str) -> None:
    assert asked(version=version).age == age_of("vllm", "0.7.3", H100)
    assert asked(version=version).age.time > 1.2


@pytest.mark.parametrize("version", ["", "0.19.0", "nightly-dev-20240216", "2026", "gpt-oss-dev", "main(~1.2)"])
def test_what_is_new_or_says_nothing_is_of_today(version: str) -> None:
    assert asked(version=version).age == Era()


def test_a_year_is_as_wide_as_its_first_and_last_release_together() -> None:
    """vLLM blog of 2024-09-05: 0.6 took a fifth to half of 0.5's time, so a row of 2024 may be of either."""
    year, last = asked(version="2024").age, age_of("vllm", "0.6.6", H100)
    first = age_of("vllm", "0.5.0", H100)
    assert year == age_within("vllm", datetime.date(2024, 1, 1), datetime.date(2024, 12, 31), H100)
    assert year.time == last.time
    assert year.time * year.high == pytest.approx(first.time * first.high)
    assert year.low == last.low
    assert any("2024" in text for text in asked(version="2024").assumed)


def test_judged_figures_are_as_old_as_their_rows() -> None:
    now, below, above = predicted(version="0.19.0")
    then, wider_below, wider_above = predicted(version="0.7.3")
    age = age_of("vllm", "0.7.3", H100)
    assert then / now == pytest.approx(age.time, rel=0.05)  # collectives, prompts and steps all take so much longer
    assert wider_above == pytest.approx(math.exp(math.hypot(math.log(above), math.log(age.high))), rel=1e-6)
    assert wider_below == pytest.approx(math.exp(math.hypot(math.log(below), math.log(age.low))), rel=1e-6)
    tokens, fewer, more = predicted(version="0.7.3", metric="output_tok_s_total", value="900")
    assert tokens < predicted(metric="output_tok_s_total", value="900")[0]
    assert (fewer > more) == (wider_above > wider_below)  # slow times are low rates


def test_ranges_of_causes_apart_add_as_squares() -> None:
    low, high = with_age(0.5, 3.0, Era(time=2.0, low=0.8, high=1.0))
    assert low == pytest.approx(math.exp(-math.hypot(math.log(2), math.log(1.25))))
    assert high == pytest.approx(3.0)
    assert with_age(0.5, 2.0, Era()) == (pytest.approx(0.5), pytest.approx(2.0))
