"""Start-up logs, read by phase: the few numbers of `trilemma.timing.starting` from them, and how far runs left out lie off.

``python -m trilemma.measured.serving.start_up_time`` prints what the shipped rows say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trilemma.timing.starting import starting_data

#: The share of runs that the range of a phase holds.
_HELD = 0.9
_Row = Mapping[str, Any]


def _stated(name: str) -> Callable[[_Row], float | None]:
    return lambda row: row.get(name)


def _rate(row: _Row) -> float | None:
    """GiB a second; where only the time until weights are in place is stated, of that."""
    seconds = row.get("load_s", row.get("model_s"))
    return float(row["gib"]) / float(seconds) if seconds and "gib" in row else None


#: Phase → its figure in a row, None where the log does not say.
FIGURES: dict[str, Callable[[_Row], float | None]] = {
    "cached_gib_per_s": lambda row: _rate(row) if row.get("cached") else None,
    "read_gib_per_s": lambda row: None if row.get("cached") else _rate(row),
    "placed_share": lambda row: row["model_s"] / row["load_s"] - 1 if "model_s" in row and "load_s" in row else None,
    **{name: _stated(name) for name in ("compile_s", "compiled_s", "capture_s", "rest_s", "process_s")},
}


def figures_of(phase: str, rows: Sequence[_Row] | None = None) -> list[float]:
    """What the ``rows`` (those shipped) say of ``phase``."""
    rows = starting_data()["run"] if rows is None else rows
    return [float(found) for row in rows if (found := FIGURES[phase](row)) is not None]


def fitted(phase: str, rows: Sequence[_Row] | None = None) -> tuple[float, float]:
    """(middle, half) of ``phase``: the mean of the logarithms of its figures, and the logarithm within which nine of ten lie
    around the mean of the others, wider by twice the part of one where they are few."""
    logs = np.log(figures_of(phase, rows))
    others = (logs.sum() - logs) / max(len(logs) - 1, 1)
    half = np.quantile(np.abs(logs - others), _HELD) * (1 + 2 / len(logs))
    return float(np.exp(logs.mean())), float(half)


def main() -> None:
    for phase in FIGURES:
        middle, half = fitted(phase)
        print(f"{phase}: middle {middle:.3g}, half {half:.2g}, {len(figures_of(phase))} runs")


if __name__ == "__main__":
    main()
