"""How wide the screen is."""

from __future__ import annotations

import shutil

#: A table of plans or cards needs more columns than one estimate.
TABLE_WIDTH = 100


def screen_width() -> int:
    """Columns to fill: the terminal's, within what reads well."""
    return max(60, min(shutil.get_terminal_size((100, 40)).columns, 140))
