"""Bars that a validation has to clear: ``METRIC.STAT<=X``, on pooled, class and macro figures."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from trilemma.columns import column
from trilemma.errors import InputError, shorten
from trilemma.measured.metrics import Errors, VerdictScore

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_BAR = re.compile(r"\s*([^<>]{1,300}?)\.([a-z0-9_]{1,40})\s*(<=|>=|<|>)\s*([0-9.eE+-]{1,40}%?)\s*")
_ERROR_STATS = (*(field.name for field in fields(Errors)), "groups")
_VERDICT_STATS = tuple(field.name for field in fields(VerdictScore))


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One bar. ``path`` is ``metric``, ``macro.metric``, ``macro.column.metric`` or ``by.class=value.metric``."""

    text: str
    path: str
    stat: str
    compare: str
    bar: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RequirementOutcome:
    """A bar met or missed; ``value`` None says that nothing was measured."""

    #: One entry of ``required`` in a document.
    COLUMNS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "bar": {},
        "met": {},
        "value": column(exact=True, keep="none"),
    }

    requirement: Requirement
    met: bool
    value: float | None

    @property
    def bar(self) -> str:
        """The requirement as it was written."""
        return self.requirement.text


def parse_requirement(text: str) -> Requirement:
    """``weights_gib_per_gpu.median_ape<=0.01`` or ``…<=1%``. Raises `InputError`."""
    match = _BAR.fullmatch(text[:500])
    if match is None:
        raise InputError(
            f"--require {shorten(text)!r} is not METRIC.STAT<=X, such as weights_gib_per_gpu.median_ape<=0.01"
        )
    path, stat, compare, number = match.groups()
    try:
        bar = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise InputError(f"--require {shorten(text)!r}: {number!r} is not a number") from None
    return Requirement(text=text.strip(), path=path, stat=stat, compare=compare, bar=bar)


def check_names(requirement: Requirement, metrics: Mapping[str, tuple[str, ...]]) -> None:
    """Raises `InputError` for a metric or statistic that no table of this kind can have, naming those it can.

    ``metrics`` maps the known metric names to their statistics.
    """
    metric = requirement.path.rpartition(".")[2]
    if metric not in metrics:
        raise InputError(
            f"--require {shorten(requirement.text)!r}: unknown metric {shorten(metric)!r}; known are {', '.join(metrics)}"
        )
    if requirement.stat not in metrics[metric]:
        raise InputError(
            f"--require {shorten(requirement.text)!r}: {metric} has no {requirement.stat!r}; it has"
            f" {', '.join(metrics[metric])}"
        )


def statistics_of(metric: str) -> tuple[str, ...]:
    """Names of the statistics that ``metric`` can have."""
    return _VERDICT_STATS if metric == "verdict" else _ERROR_STATS


def check(requirement: Requirement, document: Mapping[str, Any]) -> RequirementOutcome:
    """Whether ``document`` (``trilemma/validation@1``) clears the bar; a figure that was not measured does not."""
    value = _find(requirement, document)
    met = value is not None and _OPERATORS[requirement.compare](value, requirement.bar)
    return RequirementOutcome(requirement=requirement, met=met, value=value)


def _find(requirement: Requirement, document: Mapping[str, Any]) -> float | None:
    where, dot, metric = requirement.path.rpartition(".")
    part: Any
    if not dot:
        part = document["metrics"]
    elif where == "macro":
        columns = document["macro"]
        if len(columns) != 1:
            raise InputError(
                f"--require {shorten(requirement.text)!r} needs exactly one --macro COLUMN; with several, write"
                " macro.COLUMN.METRIC.STAT"
            )
        part = next(iter(columns.values()))
    elif where.startswith("macro."):
        column = where.removeprefix("macro.")
        if column not in document["macro"]:
            raise InputError(f"--require {shorten(requirement.text)!r} needs --macro {shorten(column)}")
        part = document["macro"][column]
    elif where.startswith("by."):
        part = document["by"].get(where.removeprefix("by."), {})
    else:
        raise InputError(
            f"--require {shorten(requirement.text)!r}: {shorten(where)!r} is neither macro, macro.COLUMN nor by.CLASS=VALUE"
        )
    return part.get(metric, {}).get(requirement.stat)  # type: ignore[no-any-return]
