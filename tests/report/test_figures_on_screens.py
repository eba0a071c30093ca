"""Screens of made-up answers, figure by figure: a token's time taken apart, errors of a validation, an upgrade's headline."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import trilemma as tl
from trilemma.errors import PlanWarning
from trilemma.estimate.estimate import Latency, OperatorTime, SpeedEstimate
from trilemma.estimate.upgrade import Upgrade, VersionChange
from trilemma.intervals import Interval
from trilemma.measured.judgement import FigureComparison, Judgement, StartVerdict
from trilemma.measured.metrics import Errors, PairOrder, Sureness, VerdictScore
from trilemma.measured.requirements import Requirement, RequirementOutcome
from trilemma.measured.validation import Macro, Validation
from trilemma.report.operators import operator_table, rounded_to_sum
from trilemma.report.upgrade import render_upgrade, upgrade_document
from trilemma.report.validation import render_classes, render_outcomes, render_validation


def cells(line: str) -> list[str]:
    return [one for one in re.split(r" {2,}", line.strip()) if one and not set(one) <= set("█▏▎▍▌▋▊▉░▕ ")]


@pytest.mark.parametrize(("values", "digits", "rounded"), [
    ([1.4, 1.4, 1.2], 0, [2.0, 1.0, 1.0]),  # four in all: the one cut most is rounded up
    ([0.24, 0.26, 0.5], 1, [0.2, 0.3, 0.5]),
    ([1.0, 2.0], 0, [1.0, 2.0]),
    ([0.333, 0.333, 0.333], 1, [0.4, 0.3, 0.3]),
    ([0.0, 0.04], 1, [0.0, 0.0]),
    ([10.06, 0.02, 0.02], 1, [10.1, 0.0, 0.0]),
])  # fmt: skip
def test_rounded_figures_sum_to_the_rounded_sum(values: list[float], digits: int, rounded: list[float]) -> None:
    found = rounded_to_sum(values, digits)
    assert found == pytest.approx(rounded)
    assert sum(found) == pytest.approx(round(sum(values), digits))


def span(value: float) -> Latency:
    return Latency(interval=Interval(value=value, low=value * 0.9, high=value * 1.1))


def line(
    name: str, ms: float, roof_ms: float | None = None, *, source: str = "fits", bound_by: Any = "memory_bandwidth"
) -> OperatorTime:
    roof = None if roof_ms is None else roof_ms / 1e3
    return OperatorTime(name=name, seconds=ms / 1e3, share=ms / 20.0, roof_s=roof, bound_by=bound_by, source=source)


LINES = (
    line("attention", 2.0, 1.0), line("dense", 10.0, 8.0), line("lm_head", 4.0, 4.5), line("kernels", 1.5, bound_by="host"),
    line("all_reduce", 1.0, 0.5, bound_by="interconnect"), line("host", 0.5, bound_by="host"), line("prefill", 1.0, 0.9),
)  # fmt: skip


def speed(lines: tuple[OperatorTime, ...] = LINES, **more: Any) -> SpeedEstimate:
    plain: dict[str, Any] = {
        "tpot_s": span(0.020), "step_s": span(0.019), "batch": 8.0, "operators": lines, "ttft_s": span(0.5),
        "ttft_lines": {"request": 0.010, "prefill": 0.400, "slot": 0.090},
    }  # fmt: skip
    return SpeedEstimate(**{**plain, **more})


def shown(found: SpeedEstimate, *, full: bool = False) -> list[str]:
    return list(operator_table(found, full=full, width=200))


def test_the_longest_lines_of_a_token_and_the_rest_in_one() -> None:
    found = shown(speed())
    assert cells(found[0]) == ["a token at batch 8", "ms", "share", "of roof", "bound by"]
    assert [cells(one) for one in found[2:8]] == [
        ["dense products", "10.00", "50%", "80%", "memory bandwidth"],
        ["output head", "4.00", "20%", "112%", "memory bandwidth"],
        ["attention", "2.00", "10%", "50%", "memory bandwidth"],
        ["kernel launches", "1.50", "8%", "–", "host"],
        ["3 shorter", "2.50", "12%"],
        ["TPOT", "20.00"],
    ]
    notes = " ".join(found[8:])
    assert (
        "roof: the same work at the datasheet's peak, bandwidth and links; seconds: fits; above 100 %: output head,"
        in notes
    )
    assert "first token 500.0 ms = request handling 10.0 + its prefill 400.0 + wait for a slot 90.0" in notes
    assert "decode step" not in notes


def test_all_lines_with_roofs_and_sources() -> None:
    lines = (
        *LINES[:5],
        line("host", 0.5, source="priors", bound_by="host"),
        line("prefill", 1.0, 0.9, source="others"),
    )
    found = shown(speed(lines), full=True)
    assert cells(found[0]) == ["a token at batch 8", "ms", "share", "of roof", "roof ms", "bound by", "from"]
    rows = [cells(one) for one in found[2:9]]
    assert rows[0] == ["dense products", "10.00", "50%", "80%", "8.00", "memory bandwidth", "fits"]
    assert [row[0] for row in rows[4:]] == ["all-reduce", "prefills of others", "host, a step"]
    assert rows[6] == ["host, a step", "0.50", "2%", "–", "–", "host", "priors"]
    notes = " ".join(found[9:])
    assert "seconds:" not in notes
    # Tokens come by 19 ms of a step, and a millisecond of other requests' prompts.
    assert "decode step 19.00 ms: 19.00 ms a token + prefills of others 1.00 ms" in notes


def test_sources_are_named_below_where_no_column_is() -> None:
    lines = tuple(replace(one, source=f"s{at}") for at, one in enumerate(LINES))
    assert "; seconds: s1, s2 and 5 more" in " ".join(shown(speed(lines)))
    assert "; seconds: s1, s2;" in " ".join(shown(speed((*lines[1:3],))))


def test_five_lines_are_shown_in_full_and_six_are_not() -> None:
    assert not any("shorter" in one for one in shown(speed(LINES[:5])))
    assert any("2 shorter" in one for one in shown(speed(LINES[:6])))


def test_drafts_make_several_tokens_of_a_step() -> None:
    lines = (line("dense", 8.0, 8.0), line("draft", 1.0, 0.5), line("prefill", 1.0))
    found = speed(lines, tpot_s=span(0.010), step_s=span(0.018))
    # 18 ms over the 9 ms that a token takes beside prefills: two tokens, one millisecond of drafts for each.
    assert any("decode step 18.00 ms makes 2.00 tokens of a sequence, drafts 2.00 ms of it: 9.00 ms a token" in one
               for one in shown(found))  # fmt: skip


@pytest.mark.parametrize(
    ("tpot_ms", "figure"), [(20.0, "20.00"), (200.0, "200.0"), (2000.0, "2,000"), (2.0, "2.000"), (0.2, "0.2000")]
)
def test_as_many_digits_as_four_figures_have(tpot_ms: float, figure: str) -> None:
    found = shown(speed((line("dense", tpot_ms, 1.0),), tpot_s=span(tpot_ms / 1e3)))
    assert cells(next(one for one in found if one.startswith("TPOT"))) == ["TPOT", figure]


def test_nothing_is_taken_apart_where_nothing_is_known() -> None:
    assert shown(speed(())) == []
    assert shown(speed(tpot_s=None)) == []
    assert not any("first token" in one for one in shown(speed(ttft_lines={})))
    assert not any("first token" in one for one in shown(speed(ttft_s=None)))
    late = speed(ttft_s=span(2.5), ttft_lines={"prefill": 2.5, "slot": 0.001})
    assert "first token 2.50 s = its prefill 2.50" in " ".join(shown(late))


def errors(n: int, median: float, **more: Any) -> Errors:
    return Errors(n=n, median_ape=median, mape=median, p90_ape=2 * median, bias=-median, **more)


def compared(row: str, metric: str, predicted: float, measured: float, scale: float | None = None) -> Judgement:
    one = FigureComparison(metric=metric, predicted=predicted, measured=measured, low=None, high=None, scale=scale)
    return Judgement(row_id=row, comparisons=(one,))


def validation(**more: Any) -> Validation:
    rows = (
        compared("a", "tpot", 11.0, 10.0), compared("b", "tpot", 5.0, 10.0), compared("c", "ttft", 1234567.0, 1e6, 4e6),
        Judgement(row_id="d", skipped="no load"), Judgement(row_id="e", skipped="no load"), Judgement(row_id="f", skipped="else"),
    )  # fmt: skip
    plain: dict[str, Any] = {
        "kind": "serving speed", "rows": 6, "judgements": rows,
        "metrics": {"tpot": errors(2, 0.0312, coverage90=0.875, half_width_median=0.21), "ttft": errors(1, 0.25)},
    }  # fmt: skip
    return Validation(**{**plain, **more})


def table(text: str, first: str) -> list[list[str]]:
    lines = text.splitlines()
    at = next(at for at, one in enumerate(lines) if one.strip().startswith(first))
    found = []
    for one in lines[at + 2 :]:
        if not one.strip():
            break
        found.append(cells(one))
    return found


def test_errors_at_a_glance() -> None:
    text = render_validation(validation(), width=200)
    assert text.splitlines()[0] == "serving speed: 3 of 6 rows judged"
    assert table(text, "error of") == [
        ["tpot", "2", "3.12%", "6.24%", "-3.1%", "88%", "21.0%"],
        ["ttft", "1", "25.0%", "50.0%", "-25.0%", "-", "-"],
    ]
    assert table(text, "worst rows") == [
        ["b", "tpot", "5", "10", "50.0%"],
        ["a", "tpot", "11", "10", "10.0%"],
        ["c", "ttft", "1.23457e+06", "1e+06", "5.86%"],
    ]
    assert table(text, "rows  left out") == [["2", "no load"], ["1", "else"]]
    assert len(table(render_validation(validation(), worst=1, width=200), "worst rows")) == 1


def test_groups_have_columns_of_their_own() -> None:
    macro = {"card": {"tpot": Macro(errors=errors(3, 0.05), groups=3, rows=9)}}
    rows = table(render_validation(validation(macro=macro), width=200), "error of")
    assert [row[-2:] for row in rows] == [["5.00%", "3"], ["-", "-"]]


def test_verdicts_and_what_was_said_of_them() -> None:
    score = VerdictScore(
        n=10, accuracy=0.9, false_fit=0.125, false_no_fit=0.05, balanced_accuracy=0.91,
        reliability=(
            Sureness(at_least=0.5, n=0, mean=None, held=None, n_from=10, held_from=0.9),
            Sureness(at_least=0.9, n=4, mean=0.95, held=0.75, n_from=4, held_from=0.75),
        ),
    )  # fmt: skip
    wrong = Judgement(row_id="g", start=StartVerdict(predicted=True, started=False, stage="ok", outcome="oom_load"))
    right = Judgement(row_id="h", start=StartVerdict(predicted=True, started=True, stage="ok", outcome="ok"))
    order = PairOrder(n=7, agreement=0.857)
    text = render_validation(validation(verdict=score, judgements=(wrong, right), pair_order=order), width=200)
    assert (
        "verdict: right on 90.0% of 10 rows that say whether the engine started; balanced 91.0%; of those that did not start"
        " 12.5% were called fitting; of those that did 5.0% were refused"
    ) in text
    assert "order: 85.7% of 7 comparable pairs of rows in the measured order" in text
    assert table(text, "verdicts said with")[:2] == [
        ["50%", "0", "10", "90.0%"],
        ["90%", "4", "95.0%", "75.0%", "4", "75.0%"],
    ]
    assert table(text, "worst rows") == [["g", "verdict", "ok", "oom_load", "wrong"]]
    plain = render_validation(
        validation(verdict=replace(score, false_fit=None, false_no_fit=None, balanced_accuracy=None))
    )
    assert "engine started\n" in plain


def test_rows_that_were_held_out() -> None:
    held = {"columns": ["card", "engine"], "groups": 4, "terms": ["a", "b", "c"], "uninformed": {"b": 1}}
    text = " ".join(render_validation(validation(holdout=held), width=200).split())
    assert (
        "held out by card, engine: 3 coefficients and all widths refitted for each of 4 groups on the rows of the others;"
        in text
    )
    assert "; 1 of them are told by one group alone (b)" in text
    assert "told by one group" not in render_validation(validation(holdout={**held, "uninformed": {}}))


def test_classes_of_one_metric() -> None:
    by = {"card=h100": {"tpot": errors(3, 0.5)}, "card=l4": {"ttft": errors(2, 0.1), "verdict": VerdictScore(
        n=1, accuracy=1.0, false_fit=None, false_no_fit=None, balanced_accuracy=None)}}  # fmt: skip
    text = render_classes(validation(by=by), "tpot", width=200)
    assert table(text, "tpot") == [["card=h100", "3", "50.0%", "100.0%", "-50.0%", "-", "-"]]
    assert table(render_classes(validation(by=by), "verdict", width=200), "verdict") == []


def test_bars_met_and_missed() -> None:
    bar = Requirement(text="median tpot <= 0.1", path="tpot", stat="median_ape", compare="<=", bar=0.1)
    found = render_outcomes([
        RequirementOutcome(requirement=bar, met=True, value=0.0312345678),
        RequirementOutcome(requirement=bar, met=False, value=0.25), RequirementOutcome(requirement=bar, met=False, value=None),
    ])  # fmt: skip
    assert found.splitlines() == [
        "met    median tpot <= 0.1: is 0.0312346", "MISSED median tpot <= 0.1: is 0.25",
        "MISSED median tpot <= 0.1: was not measured",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def sides() -> tuple[Any, Any, Any]:
    """The same model with room, with more room, and with none."""
    roomy = tl.fit("llama-3.1-8b", "l40s", context=4096)
    tight = tl.fit("llama-3.1-8b", "l40s", context=4096, max_seqs=1)
    none = tl.fit("llama-3.1-70b", "l40s", context=4096)
    return roomy, tight, none


def upgraded(before: Any, after: Any, **more: Any) -> Upgrade:
    plain: dict[str, Any] = {"engine": "vLLM", "old": "1.0", "new": "2.0", "before": before, "after": after, "refused": (),
                             "renamed": (), "rules": (), "options": (), "command": "vllm serve x"}  # fmt: skip
    return Upgrade(**{**plain, **more})


def headline(found: Upgrade) -> str:
    return render_upgrade(found, width=200).splitlines()[0]


def test_headlines_of_upgrades(sides: tuple[Any, Any, Any]) -> None:
    roomy, tight, none = sides
    share = tight.cache.tokens.value / roomy.cache.tokens.value - 1
    assert headline(upgraded(roomy, tight)) == (
        f"vLLM 1.0 to 2.0: it starts, {int(tight.cache.tokens.value):,} tokens of cache ({share:+.1%})"
    )
    assert headline(upgraded(none, roomy)).startswith("vLLM 1.0 to 2.0: it starts, which it does not under 1.0")
    assert headline(upgraded(roomy, none)).startswith(f"vLLM 1.0 to 2.0: it does not start ({none.verdict.stage}): ")
    assert f"does not start ({none.verdict.stage}), nor does it under 1.0: " in headline(upgraded(none, none))
    gone = PlanWarning(code="removed-flag", message="no --x")
    assert (
        headline(upgraded(roomy, roomy, refused=(gone,))) == "vLLM 1.0 to 2.0: 1 flag is refused; without it it starts"
    )
    assert (
        headline(upgraded(roomy, roomy, refused=(gone, gone)))
        == "vLLM 1.0 to 2.0: 2 flags are refused; without them it starts"
    )


def test_memory_of_both_sides(sides: tuple[Any, Any, Any]) -> None:
    roomy, tight, _ = sides
    found = upgraded(roomy, tight)
    rows = {row[0]: row[1:] for row in table(render_upgrade(found, width=200), "memory per GPU")}
    for one in roomy.memory.ledger:
        other = tight.memory.ledger.get(one.name)
        first, second = (float(side.bytes) / 2**30 if side is not None else 0.0 for side in (one, other))
        assert rows[one.name.replace("_", " ")] == [f"{first:.2f}", f"{second:.2f}", f"{second - first:+.2f}"]
    first, second = roomy.cache.tokens.value, tight.cache.tokens.value
    assert rows["tokens of cache"] == [f"{int(first):,}", f"{int(second):,}", f"{second - first:+,.0f}"]
    document = upgrade_document(found)
    assert [one["name"] for one in document["memory"]] == list(dict.fromkeys(
        line.name for side in (roomy, tight) for line in side.memory.ledger))  # fmt: skip
    refused = upgrade_document(upgraded(roomy, tight, refused=(PlanWarning(code="a", message="b"),)))
    assert (document["harmless"], refused["harmless"]) == (True, False)


def test_rules_and_options_that_changed(sides: tuple[Any, Any, Any]) -> None:
    roomy, *_ = sides
    rules = (
        VersionChange(name="graph_sizes", before={"most": 512, "kinds": 2.0}, after=[1, True, 0.5], source="file.py"),
        VersionChange(name="plain", before=False, after=None, source=""),
    )
    options = (VersionChange(name="max_seqs", before=256, after=1024, source=""),)
    text = render_upgrade(upgraded(roomy, roomy, rules=rules, options=options), width=200)
    assert table(text, "rule of the engine") == [
        ["graph sizes", "most 512, kinds 2", "1 yes 0.5", "file.py"], ["plain", "no", "None"],
    ]  # fmt: skip
    assert table(text, "option in force") == [["max_seqs", "256", "1024"]]
    assert text.endswith("run it\n  vllm serve x")
    document = upgrade_document(upgraded(roomy, roomy, rules=rules, options=options))
    assert ["source" in one for one in document["rules"]] == [True, False]
