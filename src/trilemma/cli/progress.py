"""A bar on a terminal's standard error, and nothing where that is no terminal."""

from __future__ import annotations

import sys

_WIDTH, _MOST = 24, 48


def bar(done: int, total: int, what: str) -> None:
    """``done`` of ``total``, and what comes next; the line is wiped when all is done."""
    if not sys.stderr.isatty():
        return
    if done >= total:
        print("\r\x1b[K", end="", file=sys.__stderr__, flush=True)
        return
    filled = round(_WIDTH * done / max(total, 1))
    line = f"{'█' * filled}{'░' * (_WIDTH - filled)} {done}/{total} {what[:_MOST]}"
    print(f"\r\x1b[K{line}", end="", file=sys.__stderr__, flush=True)
