"""Bars, conditions and the document they are read from."""

from __future__ import annotations

import pytest

from trilemma.columns import document_of
from trilemma.errors import InputError
from trilemma.measured.judgement import FigureComparison, Judgement, StartVerdict
from trilemma.measured.requirements import check, check_names, parse_requirement, statistics_of
from trilemma.measured.selection import parse_condition, select
from trilemma.measured.tables import Row
from trilemma.measured.validation import Validation, summarise
from trilemma.report.validation import ValidationDocument


def judged(row_id: str, source: str, predicted: float, *, started: bool = True, family: str = "dense") -> Judgement:
    return Judgement(
        row_id=row_id,
        cells={"source": source},
        classes={"family": family},
        comparisons=(FigureComparison(metric="w", predicted=predicted, measured=100, low=90, high=110),),
        start=StartVerdict(predicted=True, started=started, stage="ok", outcome="ok" if started else "oom_load"),
        config=row_id[:1],
    )


@pytest.fixture
def validation() -> Validation:
    rows = [judged(f"a{i}", "big", 101) for i in range(4)]
    rows += [judged("b1", "one", 110, started=False, family="moe"), judged("c1", "two", 130)]
    rows.append(Judgement(row_id="d1", skipped="names no GPU"))
    return summarise("serving-memory", rows, macro_columns=["source"], broken=[("line 9", "2 cells")])


def test_document_follows_the_contract(validation: Validation) -> None:
    document = document_of(ValidationDocument(validation=validation))
    assert document["schema"] == "trilemma/validation@1"
    assert (document["rows"], document["used"], document["configs_used"]) == (8, 6, 3)
    assert document["skipped"] == [{"id": "line 9", "why": "2 cells"}, {"id": "d1", "why": "names no GPU"}]
    assert document["metrics"]["w"]["n"] == 6
    assert document["metrics"]["w"]["median_ape"] == pytest.approx(0.01)
    assert document["metrics"]["verdict"]["accuracy"] == pytest.approx(5 / 6)
    assert document["by"]["family=moe"]["w"]["mape"] == pytest.approx(0.1)
    # "one" and "two" hold under three rows each: one pooled group (median .2) beside "big" (.01)
    macro = document["macro"]["source"]["w"]
    assert macro["median_ape"] == pytest.approx((0.01 + 0.2) / 2)
    assert (macro["n"], macro["groups"]) == (6, 2)


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        ("w.median_ape<=0.02", True),
        ("w.median_ape <= 2%", True),
        ("w.median_ape<0.01", False),
        ("w.coverage90>=0.8", True),
        ("w.n>6", False),
        ("macro.w.median_ape<=0.1", False),
        ("macro.source.w.median_ape<=0.11", True),
        ("by.family=moe.w.mape<=0.11", True),
        ("by.family=none.w.mape<=0.11", False),
        ("verdict.balanced_accuracy>=0.85", False),
        ("verdict.accuracy>=0.8", True),
    ],
)
def test_bars(validation: Validation, bar: str, met: bool) -> None:
    assert check(parse_requirement(bar), document_of(ValidationDocument(validation=validation))).met is met


def test_a_figure_that_was_not_measured_misses_its_bar(validation: Validation) -> None:
    outcome = check(parse_requirement("v.median_ape<=1"), document_of(ValidationDocument(validation=validation)))
    assert not outcome.met
    assert outcome.value is None


@pytest.mark.parametrize("text", ["w<=1", "w.median_ape=1", "w.median_ape<=", "", "w.median_ape<=1.2.3", "x" * 9999])
def test_malformed_bars_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--require"):
        parse_requirement(text)


def test_unknown_metrics_and_statistics_are_named() -> None:
    known = {metric: statistics_of(metric) for metric in ("w", "verdict")}
    check_names(parse_requirement("macro.w.median_ape<=1"), known)
    with pytest.raises(InputError, match="unknown metric 'v'; known are w, verdict"):
        check_names(parse_requirement("v.median_ape<=1"), known)
    with pytest.raises(InputError, match="w has no 'accuracy'; it has n, median_ape"):
        check_names(parse_requirement("w.accuracy>=1"), known)


def test_macro_bars_need_their_column(validation: Validation) -> None:
    with pytest.raises(InputError, match="needs --macro gpu"):
        check(parse_requirement("macro.gpu.w.median_ape<=1"), document_of(ValidationDocument(validation=validation)))
    with pytest.raises(InputError, match="neither macro"):
        check(parse_requirement("micro.w.median_ape<=1"), document_of(ValidationDocument(validation=validation)))


ROWS = [
    Row(id=str(i), line=i, cells=cells) for i, cells in enumerate([{"a": "8", "b": "x y"}, {"a": "8.0"}, {"b": "z"}])
]


@pytest.mark.parametrize(
    ("condition", "kept"), [("a=8", ["0", "1"]), ("a=", ["2"]), ("b~^x", ["0"]), ("b~.", ["0", "2"]), ("b=z", ["2"])]
)
def test_conditions_choose_rows(condition: str, kept: list[str]) -> None:
    assert [row.id for row in select(ROWS, [parse_condition(condition, ["a", "b"])])] == kept


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("a", "neither COLUMN=VALUE nor COLUMN~REGEX"),
        ("c=1", "unknown column 'c'"),
        ("a~(", "not a regular expression"),
        ("a~(x+)+y", "repeated groups"),
        ("a~" + "x" * 300, "longer than 200"),
    ],
)
def test_unsafe_conditions_are_refused(condition: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_condition(condition, ["a", "b"])
