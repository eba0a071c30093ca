"""``--chart FILE``: the same option for every command that draws."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_chart_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """``what`` the command draws."""
    parser.add_argument(
        "--chart", metavar="FILE", help=f"draw {what} to FILE.png, .svg or .html (needs the extra: charts)"
    )


def read_chart(arguments: argparse.Namespace) -> Path | None:
    """The file to draw to, checked before the work; None where no chart is asked for."""
    if arguments.chart is None:
        return None
    from trilemma.report.charts import chart_file

    return chart_file(arguments.chart)


def draw(spec: dict[str, Any], path: Path) -> None:
    """Write a chart and say so on stderr: stdout is the answer's."""
    from trilemma.report.charts import write_chart

    write_chart(spec, path)
    print(f"chart: {path}", file=sys.stderr)
