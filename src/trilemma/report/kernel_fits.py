"""The errors of fitted kernels for people: one line a kernel, its bar beside."""

from __future__ import annotations

from collections.abc import Sequence

from trilemma.measured.kernels.report import ReportLine
from trilemma.report.tables import render_table


def render_lines(found: Sequence[ReportLine], *, width: int | None = None) -> str:
    """The lines as a table for people."""
    return render_table(
        ("kernel", "groups", "rows", "median", "bar", "worst", "twice", "worst group", ""),
        [
            (
                line.name,
                str(line.groups),
                f"{line.rows:,}",
                f"{line.median:.1%}",
                "–" if line.bar is None else f"{line.bar:.0%}",
                f"{line.worst:.1%}",
                "–" if line.bar is None else f"{2 * line.bar:.0%}",
                line.worst_group,
                "" if line.bar is None else "met" if line.met else "missed",
            )
            for line in found
        ],
        align="lrrrrrrll",
        width=width,
        yields=("twice", "worst group", "rows"),
    )
