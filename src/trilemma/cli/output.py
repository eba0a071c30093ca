"""How answers leave the program: a screen for people or one JSON document, and the exit code."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trilemma.estimate.estimate import Estimate

YES, NO, BAD_INPUT, OUR_BUG = 0, 1, 2, 3


def screen_width() -> int:
    """Columns to fill: the terminal's, within what reads well."""
    return max(60, min(shutil.get_terminal_size((100, 40)).columns, 140))


def show_estimate(estimate: Estimate, *, as_json: bool, explain: bool) -> int:
    """Print one estimate; 0 when the plan fits, else 1."""
    if as_json:
        from trilemma.report.document import dumps, estimate_document

        print(dumps(estimate_document(estimate, explain=explain)))
    else:
        from trilemma.report.text import render_estimate

        print(render_estimate(estimate, explain=explain, width=screen_width()))
    return YES if estimate.fits else NO
