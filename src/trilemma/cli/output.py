"""How answers leave the program: a screen for people or one JSON document, a chart, and the exit code."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from trilemma.ask.screen import screen_width
from trilemma.outside_files import written

if TYPE_CHECKING:
    from pathlib import Path

    from trilemma.ask.answers import Shown

__all__ = ["BAD_INPUT", "NO", "OUR_BUG", "YES", "screen_width", "show", "tell"]

YES, NO, BAD_INPUT, OUR_BUG = 0, 1, 2, 3


def tell(answer: Shown, arguments: argparse.Namespace, *, chart: Path | None = None) -> int:
    """Print an answer, and draw it where a file is named; 0 when it is yes, else 1."""
    if chart is not None and (spec := answer.chart()) is not None:
        from trilemma.cli.charts import draw

        draw(spec, chart)
    explain = getattr(arguments, "explain", False)
    if getattr(arguments, "report", None) is not None:
        _write_page(answer, arguments.report)
    print(answer.to_json(explain=explain) if arguments.json else answer.show(explain=explain))
    return YES if answer.yes else NO


def _write_page(answer: Shown, name: str) -> None:
    """The answer as one page, and a line on stderr: stdout is the answer's. Raises `InputError` where it cannot be written."""
    from pathlib import Path

    from trilemma.errors import InputError, shorten

    path = Path(name)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--report {shorten(name)}: a report is a page; give FILE.html")
    page = answer.page(asked=shlex.join(["trilemma", *sys.argv[1:]]))
    with written(path, what="--report"):
        path.write_text(page, encoding="utf-8")
    print(f"report: {path}", file=sys.stderr)


def show(text: str) -> None:
    """Print an answer that is not of `trilemma.ask`, in the columns that there are."""
    from trilemma.report.wrapping import within

    print(within(text, screen_width()))
