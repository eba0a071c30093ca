"""How wide the screen is."""

from __future__ import annotations

import shutil

#: Columns where nothing says how wide the window is, and the fewest that anything is laid out for.
_UNKNOWN, _LEAST = 80, 40


def screen_width() -> int:
    """Columns to fill: those of the window, as `COLUMNS` or the terminal states them."""
    return max(_LEAST, shutil.get_terminal_size((_UNKNOWN, 24)).columns)
