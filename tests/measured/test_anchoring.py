"""Predictions that start from measured points of the same deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.timing.anchoring import Anchors, anchor_numbers, corrections

ASKED: dict[str, Any] = {"isl": 1024, "osl": 1024}


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Two points, 30 % and 10 % slower a token than what is said of them."""
    rows = ["isl,osl,concurrency,ttft_ms,tpot_ms"]
    for concurrency, slower in ((4, 1.3), (64, 1.1)):
        speed = plain(concurrency)
        rows.append(f"1024,1024,{concurrency},{speed['ttft_ms']['value'] * 1.2},{speed['tpot_ms']['value'] * slower}")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def plain(concurrency: int, **options: Any) -> dict[str, Any]:
    speed: dict[str, Any] = tl.fit("llama-3.1-8b", "h100-sxm", concurrency=concurrency, **ASKED, **options).to_dict()[
        "speed"
    ]
    return speed


def test_the_measured_points_are_told_as_measured(runs: str) -> None:
    for concurrency, slower in ((4, 1.3), (64, 1.1)):
        before, after = plain(concurrency), plain(concurrency, runs=runs)
        assert after["tpot_ms"]["value"] == pytest.approx(before["tpot_ms"]["value"] * slower, rel=0.01)
        assert after["tpot_ms"]["high"] / after["tpot_ms"]["value"] < 1.05
        lines = sum(line["seconds"] for line in after["lines"])
        assert 1e3 * lines == pytest.approx(after["tpot_ms"]["value"], rel=1e-4)


def test_between_and_beyond_the_physics_carry_it(runs: str) -> None:
    """Between the points the correction lies between theirs; farther away it fades and the range widens."""
    factors = {}
    for concurrency in (1, 16, 256, 1024):
        before, after = plain(concurrency), plain(concurrency, runs=runs)
        factors[concurrency] = after["tpot_ms"]["value"] / before["tpot_ms"]["value"]
    assert 1.1 < factors[16] < 1.3
    assert 1 < factors[1024] < factors[256] < 1.1
    widths = [
        plain(concurrency, runs=runs)["tpot_ms"]["high"] / plain(concurrency, runs=runs)["tpot_ms"]["value"]
        for concurrency in (64, 128, 1024)
    ]
    assert widths == sorted(widths)


def test_rates_follow_the_times(runs: str) -> None:
    after = plain(64, runs=runs)
    request_s = (after["ttft_ms"]["value"] + 1023 * after["tpot_ms"]["value"]) / 1e3
    assert after["output_tokens_per_s"]["value"] == pytest.approx(64 * 1024 / request_s, rel=0.02)


def test_points_of_another_deployment_are_refused_where_they_cannot_be(runs: str) -> None:
    with pytest.raises(InputError, match="cannot be"):
        tl.fit(
            "llama-3.1-405b", "h100-sxm:16", concurrency=4, runs=runs, **ASKED
        )  # faster than its weights can be read
    answer = tl.fit("llama-3.1-8b", "h100-sxm", concurrency=16, runs=runs, **ASKED).to_dict()
    assert any(one["code"] == "anchored" and "2 loads" in one["message"] for one in answer["warnings"])


@pytest.mark.parametrize("figure", ["tpot", "ttft"])
def test_the_correction_is_that_of_a_random_function(figure: str) -> None:
    """At a measured point its own value but for what repeats differ by; far from all, what the constant keeps of it."""
    numbers = anchor_numbers()[figure]
    load = (1000.0, 100.0, 8.0)
    mean, half = corrections([load], [0.3], [load, (1000.0, 100.0, 8e30)], figure)
    whole = numbers["constant"] ** 2 + numbers["wandering"] ** 2
    assert mean[0] == pytest.approx(0.3 * whole / (whole + numbers["repeat"] ** 2))
    assert mean[1] == pytest.approx(0.3 * numbers["constant"] ** 2 / (whole + numbers["repeat"] ** 2), rel=1e-4)
    assert half[0] < half[1] <= numbers["deviations"] * np.sqrt(whole + numbers["repeat"] ** 2)
    twice, _ = corrections([load, load], [0.3, 0.1], [load], figure)
    assert twice[0] == pytest.approx(0.2, rel=0.05)


def test_a_file_that_is_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    words = f"fit llama-3.1-8b --gpu h100-sxm --isl 8 --osl 8 --runs {tmp_path / 'no.csv'}"
    assert main(words.split()) == 2
    assert "lacks the columns" in capsys.readouterr().err


def anchored_at(*counts: float, isl: float = 1024.0) -> Anchors:
    told = tuple(((isl, 256.0, float(count)), 0.1) for count in counts)
    return Anchors(key="k", served="s", points={"tpot": told})


def test_the_next_load_is_the_one_that_narrows_the_others_most() -> None:
    for measured in ((8,), (1, 64), (4, 8, 16), (1, 4, 16, 256)):
        anchors = anchored_at(*measured)
        found = anchors.next_load()
        assert found is not None
        known = [load for load, _ in anchors.points["tpot"]]
        tried = [(1024.0, 256.0, count) for count in np.unique(np.round(np.geomspace(1, 4 * max(measured), 16)))]
        left = {one[2]: corrections([*known, one], [0.0] * (len(known) + 1), tried, "tpot")[1].mean() for one in tried}
        own = corrections([*known, found.load], [0.0] * (len(known) + 1), tried, "tpot")[1].mean()
        assert own == pytest.approx(min(left.values()))
        assert found.load[:2] == (1024.0, 256.0)
        assert found.half_width > found.then > 0
    ends = anchored_at(1, 400).next_load(most=400)
    assert ends is not None and 10 < ends.load[2] < 40  # noqa: PT018 - half way in the logarithm
    assert anchored_at().next_load() is None
    assert anchored_at(8).next_load(most=1).load[2] == 1  # type: ignore[union-attr]


def test_what_to_measure_next_is_told(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = " ".join(
        one.message for one in tl.fit("llama-3.1-8b", "h100-sxm", concurrency=8, runs=runs, **ASKED).warnings
    )
    assert "measured points at 2 loads; measure 1,024/1,024 at " in told
    assert main(["calibrate", "serving", runs, "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--name", "x"]) == 2
    assert "measure at least 5" in capsys.readouterr().err
