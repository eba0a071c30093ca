"""Columns of documents from the dataclasses that hold the figures; `trilemma.schemas` walks the same for their JSON Schema.

A field is a column of its own name unless `column` says otherwise; None is absent, and so is an empty tuple or mapping.
A class whose document has another order, or properties in it, says so in ``COLUMNS``: attribute → how it is told (`column`;
an empty mapping leaves that to the field).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal

_COLUMN = "column"


def column(
    key: str = "",
    *,
    scale: float = 1.0,
    hidden: bool = False,
    inline: bool = False,
    whole: bool = False,
    spread: bool = False,
    explained: bool = False,
    then: str = "",
    exact: bool = False,
    finite: bool = False,
    keep: Literal["", "empty", "none", "all"] = "",
) -> dict[str, Any]:
    """Metadata of a field: its ``key`` in documents, the ``scale`` of its unit there; ``hidden`` from documents, ``inline``
    with the fields of what it holds, or a ``whole`` number. An interval that is ``spread`` is three columns, whose words for
    low and high take the place of ``{}`` in ``key``. ``explained`` fields, told as they are, are of explanations alone.
    ``then`` names a property that follows it, a whole number likewise. What is ``exact`` is told as it is, numbers unrounded
    and mappings as objects; of what is ``finite`` numbers that are not are null. ``keep`` says what stands in the document though
    it is "empty" or "none", or in "all" cases."""
    return {
        _COLUMN: {
            "key": key, "scale": scale, "hidden": hidden, "inline": inline, "whole": whole, "spread": spread,
            "explained": explained, "then": then, "exact": exact, "finite": finite, "keep": keep,
        }
    }  # fmt: skip


_PLAIN = column()[_COLUMN]
_NUMBERS_AND_WORDS = frozenset((float, int, str, bool))


@cache
def columns_of(kind: Any) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """(attribute, how it is told) of every column of a dataclass, in the order of the document."""
    own = {one.name: one.metadata for one in fields(kind)}
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, stated in getattr(kind, "COLUMNS", own).items():
        told = (stated or own.get(name, {})).get(_COLUMN, _PLAIN)
        if told["hidden"]:
            continue
        follows = [(told["then"], {**_PLAIN, "whole": told["whole"]})] if told["then"] else []
        if not told["spread"]:
            found += [(name, told), *follows]
            continue
        middle, *ends = (
            (f"{name}.{end}", {**told, "key": told["key"].format("" if end == "value" else f"_{end}")})
            for end in ("value", "low", "high")
        )
        found += [middle, *follows, *ends]
    return tuple(found)


def document_of(value: Any, *, scale: float = 1.0, explain: bool = False, exact: bool = False) -> dict[str, Any]:
    """A dataclass as plain data, numbers of figures to six significant digits unless ``exact``; ``explain`` adds what is
    explained."""
    document: dict[str, Any] = {}
    for name, told in columns_of(value.__class__):
        if told["spread"] and getattr(value, name.partition(".")[0]) is None:
            continue
        found, key = (attrgetter(name)(value) if "." in name else getattr(value, name)), told["key"] or name
        if told["explained"]:
            document |= {key: dict(found) if isinstance(found, Mapping) else found} if explain else {}
        elif _is_absent(found, told["keep"]):
            continue
        elif told["inline"]:
            document |= document_of(found, scale=scale, explain=explain, exact=exact)
        elif told["whole"]:
            document[key] = int(found)
        elif told["finite"]:
            document[key] = found if math.isfinite(found) else None
        else:
            document[key] = _told(found, scale * told["scale"], explain, exact or told["exact"])
    return document


def _is_absent(value: Any, keep: str) -> bool:
    if value is None:
        return keep not in ("none", "all")
    if value.__class__ in _NUMBERS_AND_WORDS:
        return False
    return isinstance(value, tuple | Mapping) and not value and keep not in ("empty", "all")


def rounded(value: float, digits: int = 6) -> float:
    """``value`` to six significant digits: more would claim a precision that no estimate has."""
    value = float(value)
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def _told(value: Any, scale: float, explain: bool, exact: bool) -> Any:
    if value.__class__ in _NUMBERS_AND_WORDS:
        return rounded(value * scale) if value.__class__ is float and not exact else value
    if is_dataclass(value) and not isinstance(value, type):
        return document_of(value, scale=scale, explain=explain, exact=exact)
    if isinstance(value, Mapping):
        if exact:
            return {name: _told(one, scale, explain, exact) for name, one in value.items()}
        return [{"name": name, "seconds": rounded(seconds)} for name, seconds in value.items()]
    if isinstance(value, tuple):
        return [_told(one, scale, explain, exact) for one in value]
    if exact or value is None or isinstance(value, str | int):
        return value
    return rounded(value * scale)
