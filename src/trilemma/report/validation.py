"""A validation for people: every metric at a glance, the verdicts, why rows were left out, and the worst rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.columns import column
from trilemma.data.digest import Made, made_by
from trilemma.measured.metrics import Errors, Sureness, VerdictScore
from trilemma.measured.requirements import RequirementOutcome
from trilemma.measured.validation import Macro, Validation
from trilemma.quantities import counted
from trilemma.report.tables import render_table

_MOST_CLASSES = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationDocument:
    """``trilemma/validation@1``: the errors, by what they were made, and the bars that they were held to."""

    schema: Literal["trilemma/validation@1"] = "trilemma/validation@1"
    validation: Validation = field(metadata=column(inline=True))
    made_by: Made = field(default_factory=made_by, metadata=column(exact=True))
    required: tuple[RequirementOutcome, ...] = ()


def render_validation(validation: Validation, *, worst: int = 5, width: int = 110) -> str:
    """The whole answer as plain text, without a final newline."""
    parts = [
        f"{validation.kind}: {validation.used} of {counted(validation.rows, 'row')} judged",
        "",
        _glance(validation, width),
    ]
    if validation.verdict is not None:
        parts += ["", _verdict_line(validation.verdict)]
        if validation.verdict.reliability:
            parts += ["", _reliability(validation.verdict.reliability, width)]
    if validation.pair_order is not None:
        order = validation.pair_order
        parts.append(f"order: {order.agreement:.1%} of {order.n} comparable pairs of rows in the measured order")
    if validation.holdout:
        parts.append(_holdout_line(validation))
    for section in (_worst(validation, worst, width), _skipped(validation, width)):
        if section:
            parts += ["", section]
    return "\n".join(parts)


def render_classes(validation: Validation, metric: str, width: int = 110) -> str:
    """The errors of one metric, a line per class."""
    rows = [
        [name, *_figures(stats)]
        for name, part in validation.by.items()
        if isinstance(stats := part.get(metric), Errors)
    ]
    return render_table([metric, *_FIGURES], rows[:_MOST_CLASSES], align="lrrrrrr", width=width, yields=_YIELDS)


def render_class(validation: Validation, name: str, width: int = 110) -> str:
    """The errors of every metric, a line per value of one class."""
    rows = [
        [label.partition("=")[2], metric, *_figures(stats)]
        for label, part in validation.by.items()
        if label.partition("=")[0] == name
        for metric, stats in part.items()
        if isinstance(stats, Errors)
    ]
    return render_table(
        [name, "error of", *_FIGURES], rows[: 4 * _MOST_CLASSES], align="llrrrrrr", width=width, yields=_YIELDS
    )


def render_outcomes(outcomes: Sequence[RequirementOutcome]) -> str:
    """One line per bar: met or missed, and by what figure."""
    lines = []
    for outcome in outcomes:
        found = "was not measured" if outcome.value is None else f"is {outcome.value:.6g}"
        lines.append(f"{'met   ' if outcome.met else 'MISSED'} {outcome.requirement.text}: {found}")
    return "\n".join(lines)


_FIGURES = ("n", "median", "P90", "bias", "inside 90 %", "± half")
#: Columns that give way where the window is narrow, the first first.
_YIELDS = ("± half", "bias", "P90")


def _glance(validation: Validation, width: int) -> str:
    headers = ["error of", *_FIGURES]
    for name in validation.macro:
        headers += [f"median by {name}", "groups"]
    rows = []
    for metric, stats in validation.metrics.items():
        row = [metric, *_figures(stats)]
        for part in validation.macro.values():
            macro = part.get(metric)
            row += [_percent(macro.errors.median_ape), str(macro.groups)] if isinstance(macro, Macro) else ["-", "-"]
        rows.append(row)
    return render_table(headers, rows, align="l" + "r" * (len(headers) - 1), width=width, yields=_YIELDS)


def _figures(stats: Errors) -> list[str]:
    return [
        str(stats.n),
        _percent(stats.median_ape),
        _percent(stats.p90_ape),
        f"{stats.bias:+.1%}",
        "-" if stats.coverage90 is None else f"{stats.coverage90:.0%}",
        "-" if stats.half_width_median is None else _percent(stats.half_width_median),
    ]


def _percent(share: float) -> str:
    return f"{share:.2%}" if share < 0.1 else f"{share:.1%}"


def _verdict_line(verdict: VerdictScore) -> str:
    text = (
        f"verdict: right on {verdict.accuracy:.1%} of {counted(verdict.n, 'row')} that say whether the engine started"
    )
    if verdict.balanced_accuracy is not None:
        text += f"; balanced {verdict.balanced_accuracy:.1%}"
    if verdict.false_fit is not None:
        text += f"; of those that did not start {verdict.false_fit:.1%} were called fitting"
    if verdict.false_no_fit is not None:
        text += f"; of those that did {verdict.false_no_fit:.1%} were refused"
    return text


def _reliability(bins: Sequence[Sureness], width: int) -> str:
    """Verdicts by the probability with which they were said, the surest last."""
    rows = [
        [
            f"{one.at_least:.0%}",
            str(one.n),
            "" if one.mean is None else f"{one.mean:.1%}",
            "" if one.held is None else f"{one.held:.1%}",
            str(one.n_from),
            "" if one.held_from is None else f"{one.held_from:.1%}",
        ]
        for one in bins
    ]
    head = ["verdicts said with", "n", "said", "held", "this or more", "held of them"]
    return render_table(head, rows, align="lrrrrr", width=width)


def _holdout_line(validation: Validation) -> str:
    held: Mapping[str, Any] = {**(validation.holdout or {})}
    text = (
        f"held out by {', '.join(held['columns'])}: {len(held['terms'])} coefficients"
        f"{' and all widths' if held.get('widths', True) else ''} refitted for each"
    )
    text += f" of {held['groups']} groups on the rows of the others"
    if held["uninformed"]:
        text += f"; {len(held['uninformed'])} of them are told by one group alone ({', '.join(held['uninformed'])})"
    return text


def _worst(validation: Validation, most: int, width: int) -> str:
    found = [
        (abs(c.predicted - c.measured) / abs(c.measured if c.scale is None else c.scale), judgement.row_id, c)
        for judgement in validation.judgements
        for c in judgement.comparisons
    ]
    found.sort(key=lambda item: -item[0])
    rows = [[i, c.metric, f"{c.predicted:,.6g}", f"{c.measured:,.6g}", _percent(e)] for e, i, c in found[:most]]
    wrong = [
        [j.row_id, "verdict", j.start.stage, j.start.outcome, "wrong"]
        for j in validation.judgements
        if j.start is not None and j.start.predicted != j.start.started
    ]
    if not rows and not wrong:
        return ""
    headers = ["worst rows", "metric", "predicted", "measured", "error"]
    return render_table(headers, [*rows, *wrong[: 2 * most]], align="llrrr", width=width, whole=headers[:1])


def _skipped(validation: Validation, width: int) -> str:
    counts = Counter(why for _, why in validation.skipped)
    if not counts:
        return ""
    rows = [[str(count), why] for why, count in counts.most_common()]
    return render_table(["rows", "left out because"], rows, align="rl", width=width)
