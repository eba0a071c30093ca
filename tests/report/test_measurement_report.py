"""Sensitivities, activations and allocations as they are printed, from made-up measurements counted by hand."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from trilemma.precision.activation_statistics import ActivationStatistics
from trilemma.precision.allocate import Allocation, FormatOption, Frontier, Problem
from trilemma.precision.measured_plan import BudgetChoice, Uniform
from trilemma.precision.sensitivity import Sensitivities, Sensitivity
from trilemma.precision.signals import TensorSignals
from trilemma.report.measurement import (
    allocation_document,
    render_activations,
    render_allocations,
    render_frontier,
    render_sensitivities,
)


def cells(line: str) -> list[str]:
    return [one for one in re.split(r" {2,}", line.strip()) if one]


def table(text: str, first: str) -> list[list[str]]:
    """Rows of the table whose header starts with ``first``."""
    lines = text.splitlines()
    at = next(at for at, line in enumerate(lines) if line.strip().startswith(first))
    rows = []
    for line in lines[at + 2 :]:
        if not line.strip():
            break
        rows.append(cells(line))
    return rows


def sensitivity(group: str, fmt: str, kl: float | None, **more: float) -> Sensitivity:
    return Sensitivity(
        group=group, format=fmt, bytes=100, kl=kl, perplexity_change=None, sqnr_db=more.get("sqnr_db", 20.0),
        weighted_error=more.get("error", 0.0),
    )  # fmt: skip


ELEMENTS = {"0.down": 1000, "head": 2_000_000, "embedding": 30}


def sensitivities(*rows: Sensitivity) -> Sensitivities:
    return Sensitivities(model="tiny", tokens=2048, perplexity=12.34567, elements=ELEMENTS, rows=rows)


def test_the_most_sensitive_group_stands_first() -> None:
    text = render_sensitivities(
        sensitivities(
            sensitivity("0.down", "int4", 0.002),
            sensitivity("0.down", "int8", 0.00001),
            sensitivity("head", "int4", 0.03125),
            sensitivity("embedding", "int8", 0.25),
        )
    )
    assert text.splitlines()[0] == (
        "tiny: perplexity 12.3457 on 2,048 tokens; one group at a time, KL from full precision in 1/1000 nat per token"
    )
    assert table(text, "group") == [
        ["embedding", "30", "–", "250"],
        ["head", "2,000,000", "31.2", "–"],
        ["0.down", "1,000", "2", "0.01"],
    ]
    assert "less sensitive" not in text


def test_proxies_are_ordered_by_their_error_and_shown_in_decibels() -> None:
    found = sensitivities(
        sensitivity("0.down", "int4", None, error=0.1, sqnr_db=18.04),
        sensitivity("head", "int4", None, error=0.4, sqnr_db=21.06),
        sensitivity("embedding", "int4", None, error=0.2, sqnr_db=30.0),
    )
    text = render_sensitivities(found)
    assert "one group at a time, SQNR in dB" in text
    assert [row[0] for row in table(text, "group")] == ["head", "embedding", "0.down"]
    assert [row[2] for row in table(text, "group")] == ["21.1", "30.0", "18.0"]
    short = render_sensitivities(found, most=2)
    assert short.endswith("\n1 less sensitive groups are in --json")
    assert [row[0] for row in table(short, "group")][:2] == ["head", "embedding"]
    assert "--json" not in render_sensitivities(found, most=3)


def signals(sqnr_db: float, under: float = 0.0, over: float = 0.0) -> TensorSignals:
    return TensorSignals(
        elements=10, amax=1.0, mse=0.0, sqnr_db=sqnr_db, underflows_percent=under, overflows_percent=over,
        non_finite_percent=0.0,
    )  # fmt: skip


def activations(name: str, amax: float, median: float, **kept: TensorSignals) -> ActivationStatistics:
    return ActivationStatistics(
        name=name, channels=8, amax=amax, median_channel_amax=median, outlier_channels=3, kept=kept
    )


def test_the_widest_channels_stand_first() -> None:
    rows = table(
        render_activations(
            [
                activations(
                    "0.qkv", 8.0, 4.0, fp8_tensor=signals(30.0, 1.5, 0.25), int8_channel=signals(40.0),
                    fp8_e4m3=signals(1.0),
                ),
                activations("0.k", 90.0, 3.0, fp8_e4m3=signals(25.0, 0.5, 12.125), int8_channel=signals(33.33)),
            ]
        ),
        "input or cache",
    )  # fmt: skip
    assert rows[:2] == [
        ["0.k", "90", "30.0", "3", "0.50", "12.12", "25.0", "33.3"],
        ["0.qkv", "8", "2.0", "3", "1.50", "0.25", "30.0", "40.0"],
    ]
    one = activations("0.v", 90.0, 3.0, fp8_e4m3=signals(25.0), int8_channel=signals(33.33))
    assert len(table(render_activations([one] * 30), "input or cache")) == 24 + 1  # and the note
    # Nothing at all in the median channel.
    assert table(render_activations([activations("0.v", 1.0, 0.0, **one.kept)]), "input")[0][2] == f"{1 / 1e-30:.1f}"


#: Two groups of 800 and 200 parameters; bytes by hand: 8 bits are 1,000 bytes, 4 bits 500.
PROBLEM = Problem(
    groups=("0.down", "head"),
    options=(
        (FormatOption(format="int8", bytes=800, loss=0.0), FormatOption(format="int4", bytes=400, loss=0.5)),
        (FormatOption(format="int8", bytes=200, loss=0.0), FormatOption(format="int4", bytes=100, loss=0.125)),
    ),
    elements=(800, 200),
)


def quality(kl: float, perplexity: float) -> Any:
    return SimpleNamespace(kl=kl, perplexity=perplexity, reference_perplexity=9.0, tokens=64)


UNIFORM = Uniform(format="int4", bytes=500, calibration=quality(0.7, 20.0), held_out=quality(0.8, 21.0))


def choice(**more: Any) -> BudgetChoice:
    chosen = Allocation(formats={"0.down": "int4", "head": "int8"}, bytes=600, loss=0.5, how="exact")
    plain = {
        "budget_bytes": 650, "chosen": chosen, "exact": chosen,
        "greedy": Allocation(formats=chosen.formats, bytes=600, loss=0.75, how="greedy"),
        "calibration": quality(0.55, 15.0), "held_out": quality(0.6, 16.0), "best_uniform": UNIFORM,
    }  # fmt: skip
    return BudgetChoice(**{**plain, **more})


def test_budgets_and_uniform_formats_side_by_side() -> None:
    lossless = Allocation(formats={"0.down": "int8", "head": "int8"}, bytes=1000, loss=0.0, how="uniform int8")
    text = render_allocations(
        [choice(), choice(best_uniform=None, exact=lossless, greedy=lossless)], [UNIFORM], PROBLEM, Frontier(PROBLEM),
        model="tiny",
    )  # fmt: skip
    assert text.splitlines()[0] == "tiny: 2 groups, 1,000 parameters; bits count scales; KL in nats per token"
    assert table(text, "uniform format") == [["int4", "4.000", "0.70000", "0.80000", "21.0000"]]
    first = ["5.200", "4.800", "exact", "0.50000", "0.55000", "0.60000", "16.0000"]
    assert table(text, "budget bits") == [
        [*first, "int4", "0.80000", "0.750", "1.5000"],
        [*first, "none fits", "–", "–", "1.0000"],
    ]
    assert "formats at the budget of 5.200 bits" in text
    assert table(text, "groups") == [["down", "int4"], ["head", "int8"]]


def test_formats_of_a_role_are_counted_over_layers() -> None:
    formats = {"0.down": "int4", "1.down": "int8", "2.down": "int4", "head": "int8"}
    chosen = Allocation(formats=formats, bytes=600, loss=0.5, how="exact")
    text = render_allocations([choice(chosen=chosen)], [], PROBLEM, Frontier(PROBLEM), model="tiny")
    assert table(text, "groups") == [["down", "2 x int4, int8"], ["head", "int8"]]
    assert "groups" not in render_allocations([], [], PROBLEM, Frontier(PROBLEM), model="t").split("frontier")[1]


def test_the_frontier_by_hand() -> None:
    """Bytes 500, 600, 900, 1,000 lose 0.625, 0.5, 0.125 and nothing."""
    text = render_frontier(PROBLEM, Frontier(PROBLEM), columns=9)
    title, bar, ends = text.splitlines()
    assert title == "frontier, predicted KL (log) over bits: 4 undominated plans"
    assert ends == "4.00 bits, 0.625 nats … 8.00 bits, 0 nats"
    # Nine columns, half a bit each; losses on a logarithmic scale between 0.125 and 0.625, in eighths.
    eighths = round(8 * math.log(0.5 / 0.125) / math.log(0.625 / 0.125))
    levels = " ▁▂▃▄▅▆▇█"
    assert bar == "██" + levels[eighths] * 5 + levels[round(0.0)] + " "
    alone = Problem(groups=("a",), options=((FormatOption(format="int8", bytes=100, loss=0.1),),), elements=(100,))
    assert render_frontier(alone, Frontier(alone)) == "frontier: one point at 8.000 bits"


def test_documents_hold_the_figures_of_the_text() -> None:
    found = allocation_document([choice(), choice(best_uniform=None)], [UNIFORM], PROBLEM, Frontier(PROBLEM), model="m")
    assert found["parameters"] == 1000
    assert found["uniform"] == [
        {"format": "int4", "bytes": 500, "bits": 4.0, "kl_calibration": 0.7, "kl_held_out": 0.8, "perplexity": 21.0}
    ]
    first, second = found["budgets"]
    assert (first["bits"], first["kl_predicted"], first["kl_measured"]) == (pytest.approx(4.8), 0.5, 0.55)
    assert (first["kl_held_out"], first["perplexity_full_precision"], first["kl_greedy"]) == (0.6, 9.0, 0.75)
    assert (first["best_uniform"], first["kl_best_uniform"]) == ("int4", 0.8)
    assert "best_uniform" not in second
    assert [one["bytes"] for one in found["frontier"]] == [500, 600, 900, 1000]
    assert [one["bits"] for one in found["frontier"]] == pytest.approx([4.0, 4.8, 7.2, 8.0])
    assert [one["kl"] for one in found["frontier"]] == pytest.approx([0.625, 0.5, 0.125, 0.0])


def test_a_long_frontier_is_thinned_to_its_ends() -> None:
    options = tuple(FormatOption(format=f"f{at}", bytes=100 + at, loss=1000.0 - at) for at in range(1000))
    long = Problem(groups=("a",), options=(options,), elements=(1000,))
    points = allocation_document([], [], long, Frontier(long), model="m")["frontier"]
    assert (points[0]["bytes"], points[-1]["bytes"]) == (100, 1099)
    assert {points[at + 1]["bytes"] - points[at]["bytes"] for at in range(300)} == {3}
    assert len(points) <= 401
