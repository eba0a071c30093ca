"""How far fitted kernels are off, by line of the table: medians and worst over (accelerator, engine) groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.measured.kernels.columns import table_rules
from trilemma.measured.kernels.tables import KernelRows
from trilemma.quantities import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportLine:
    """One line: errors are means of ``|predicted/measured − 1|`` of a group; ``bar`` None where nothing is asked."""

    name: str
    groups: int
    rows: int
    median: float
    worst: float
    worst_group: str
    bar: float | None

    @property
    def met(self) -> bool:
        """Median within the bar and no group above twice that."""
        return self.bar is None or (self.median <= self.bar and self.worst <= 2 * self.bar)


def lines(judged: Iterable[tuple[KernelRows, Array]]) -> list[ReportLine]:
    """Lines of the report from (rows, predicted over measured) pairs."""
    pairs = list(judged)
    return [line for rule in table_rules()["line"] if (line := _line(rule, pairs)) is not None]


def _line(rule: dict[str, Any], pairs: Sequence[tuple[KernelRows, Array]]) -> ReportLine | None:
    groups: dict[str, list[Array]] = {}
    for rows, ratio in pairs:
        if rows.kernel in rule["kernels"] and rows.dtype in rule.get("dtypes", [rows.dtype]):
            kept = np.full(len(ratio), True)
            if "least_tokens" in rule:
                kept = rows.shapes["tokens"] >= rule["least_tokens"]
            if kept.any():
                groups.setdefault(f"{rows.accelerator} {rows.engine}", []).append(np.abs(ratio[kept] - 1))
    if not groups:
        return None
    means = {name: float(np.concatenate(parts).mean()) for name, parts in groups.items()}
    worst = max(means, key=lambda name: means[name])
    return ReportLine(
        name=rule["name"],
        groups=len(means),
        rows=sum(len(part) for parts in groups.values() for part in parts),
        median=float(np.median(list(means.values()))),
        worst=means[worst],
        worst_group=worst,
        bar=rule.get("bar"),
    )
