"""Metrics in Prometheus' text format, of serving engines and DCGM's exporter: the last value of each, summed over its series."""

from __future__ import annotations

import math
import re
from typing import Any

from trilemma.diagnosis.findings import Part
from trilemma.diagnosis.readers import Reader

KIND = "prometheus"
_MOST_NAMES = 2000
_SHOWN = 200
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]{0,200})(\{.{0,4000}\})?\s+(\S{1,40})(?:\s+\d{1,20})?\s*$")


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._families = 0
        self._series: dict[str, dict[str, float]] = {}

    def take(self, record: str, where: int) -> None:  # noqa: ARG002 - a metric has no line of its own
        if record.startswith(("# TYPE ", "# HELP ")):
            self.greedy = True
            self._families += record.startswith("# TYPE ")
        elif self.greedy and (found := _SAMPLE.match(record)) and not found[1].endswith("_bucket"):
            try:
                value = float(found[3])
            except ValueError:
                return
            if math.isfinite(value) and (found[1] in self._series or len(self._series) < _MOST_NAMES):
                series = self._series.setdefault(found[1], {})
                if len(series) < _MOST_NAMES:
                    series[found[2] or ""] = value

    def part(self) -> Part | None:
        if not self._families:
            return None
        metrics: dict[str, Any] = {name: sum(series.values()) for name, series in list(self._series.items())[:_SHOWN]}
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return Part(
            kind=KIND,
            weight=10 * self._families,
            facts={"families": self._families, "metrics": finite},
            whole=self._series,
        )


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("# TYPE ", "# HELP "))
