"""``--rows FILE``: predicted and measured side by side, one line per figure."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from trilemma.measured.validation import Validation
from trilemma.outside_files import written

COLUMNS = ("id", "metric", "predicted", "low", "high", "measured", "error", "inside", "assumed", "why_not_judged")


def write_rows(path: str | Path, validation: Validation) -> None:
    """Write every comparison, verdict and skipped row as CSV. Raises `InputError` when the file cannot be written."""
    with written(path, what="--rows"), Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(_lines(validation))


def _lines(validation: Validation) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for judgement in validation.judgements:
        common = {"id": judgement.row_id, "assumed": "; ".join(judgement.assumed)}
        for c in judgement.comparisons:
            over = abs(c.measured if c.scale is None else c.scale)
            lines.append(
                common
                | {
                    "metric": c.metric,
                    "predicted": f"{c.predicted:.6g}",
                    "low": "" if c.low is None else f"{c.low:.6g}",
                    "high": "" if c.high is None else f"{c.high:.6g}",
                    "measured": f"{c.measured:.10g}",
                    "error": f"{(c.predicted - c.measured) / over:+.5f}",
                    "inside": "" if c.low is None or c.high is None else c.low <= c.measured <= c.high,
                }
            )
        if judgement.start is not None:
            start = judgement.start
            lines.append(
                common
                | {
                    "metric": "verdict",
                    "predicted": start.stage,
                    "measured": start.outcome,
                    "error": "" if start.predicted == start.started else "wrong",
                }
            )
        lines += [common | {"why_not_judged": what} for what in judgement.left_out]
    lines += [{"id": row_id, "why_not_judged": why} for row_id, why in validation.skipped]
    return lines
