"""What a command states of the preprocessor of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.flag_words import strict_json

#: Keys that are understood; others may change memory.
KNOWN = ("min_pixels", "max_pixels")


def most_pixels(extra: Mapping[str, Any]) -> int | None:
    """The most pixels of an image that a command states; None where it states none."""
    told = stated(extra).get("max_pixels")
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= 2**40 else None


def stated(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keyword arguments of the preprocessor that a command states; none where it states none."""
    given = extra.get("mm-processor-kwargs")
    if isinstance(given, str):
        try:
            given = strict_json(given)
        except (ValueError, RecursionError):
            given = None
    return given if isinstance(given, Mapping) else {}
