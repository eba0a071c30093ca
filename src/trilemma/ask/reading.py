"""What an option may be given as: text of the command line, or the value itself. Each reader raises `InputError`."""

from __future__ import annotations

import math
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.quantities import parse_count

#: No quantity that is asked for is larger, or smaller unless it is 0.
_LARGEST, _SMALLEST = 1e18, 1e-18
#: Units of a time, the longer ones first.
_MILLISECONDS = {"ms": 1.0, "s": 1000.0}
_HOURS = {"min": 1 / 60, "h": 1.0, "d": 24.0, "y": 8760.0}
#: Names in a list of formats.
_MOST_NAMES = 16


def whole_number(given: Any) -> int:
    """``4096`` or ``128K``, at least 1."""
    value = whole_or_none(given)
    if value < 1:
        raise InputError(f"{shorten(str(given))} is out of range; give a whole number of at least 1")
    return value


def whole_or_none(given: Any) -> int:
    """A whole number from 0."""
    return parse_count(given if isinstance(given, str) else _plain(given), what="value")


def number(given: Any) -> float:
    """0, or a number of 1e-18 to 1e18 either way."""
    try:
        value = float(given)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{shorten(str(given))!r} is not a number") from None
    if not math.isfinite(value):
        raise InputError(f"{shorten(str(given))!r} is not a finite number")
    if abs(value) >= _LARGEST:
        raise InputError(f"{shorten(str(given))} is out of range; give a number below {_LARGEST:g}")
    if 0 < abs(value) < _SMALLEST:
        raise InputError(f"{shorten(str(given))} is out of range; give 0, or a number above {_SMALLEST:g}")
    return value


def possible(told: Any) -> float | None:
    """A number of a document that a quantity above 0 can have; None where it is none."""
    is_one = isinstance(told, int | float) and not isinstance(told, bool) and _SMALLEST <= told < _LARGEST
    return float(told) if is_one else None


def pixels(given: Any) -> tuple[int, int]:
    """The sides of an image: ``1280x960``, or a pair (width, height)."""
    sides = given.lower().replace("×", "x").split("x") if isinstance(given, str) else given
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        raise InputError(f"{shorten(str(given))!r} is no width and height; give them as 1280x960")
    return whole_number(sides[0]), whole_number(sides[1])


def milliseconds(given: Any) -> float:
    """A time in milliseconds: a number, or one with its unit, ``40ms`` and ``2s``."""
    text = given.strip().lower() if isinstance(given, str) else ""
    unit = next((unit for unit in _MILLISECONDS if text.endswith(unit) and text[: -len(unit)].strip()), None)
    return number(given) if unit is None else number(text[: -len(unit)]) * _MILLISECONDS[unit]


def hours(given: Any) -> float:
    """A time in hours: a number, or one with its unit, ``2000h``, ``83d``, ``1.5y`` and ``90min``."""
    text = given.strip().lower() if isinstance(given, str) else ""
    unit = next((unit for unit in _HOURS if text.endswith(unit) and text[: -len(unit)].strip()), None)
    return number(given) if unit is None else number(text[: -len(unit)]) * _HOURS[unit]


def free_gib(given: Any) -> float:
    """Memory of a card that is free, from 0 GiB."""
    value = number(given)
    if value < 0:
        raise InputError(f"{shorten(str(given))} is out of range; give GiB from 0")
    return value


def word(given: Any) -> str:
    """A name that is not empty."""
    if not isinstance(given, str):
        raise InputError(f"{shorten(repr(given))} is not a name; give text")
    if not given.strip():
        raise InputError("an empty name is given; leave the option out or name one")
    return given


def text(given: Any) -> str:
    if not isinstance(given, str):
        raise InputError(f"{shorten(repr(given))} is not text")
    return given


def names(given: Any) -> list[str]:
    """``fp8,awq`` or a list of names, each once."""
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InputError(f"{shorten(repr(given))} is no list of names")
    found = [part.strip() for part in parts if part.strip()]
    if not found or len(found) > _MOST_NAMES:
        said = given[:80] if isinstance(given, str) else shorten(str(given))
        raise InputError(f"{said!r} names {len(found)} formats; give 1 to {_MOST_NAMES}, separated by commas")
    return list(dict.fromkeys(found))


def truth(given: Any) -> bool:
    if not isinstance(given, bool):
        raise InputError(f"{shorten(repr(given))} is neither True nor False")
    return given


def as_given(given: Any) -> Any:
    """A noun, or the words for it: read where it is used."""
    return given


def _plain(given: Any) -> str:
    """A number as text, where it is whole."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given != int(given):
        return repr(given)
    return str(int(given))
