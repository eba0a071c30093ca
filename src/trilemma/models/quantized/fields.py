"""Checked reads of the fields of a quantisation description: what a file states, or an `InputError` that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.models.quantized.storage import MAX_BITS, MAX_GROUP


def number(config: Mapping[str, Any], field: str, default: float | None = None) -> float | None:
    """A finite number, or ``default`` where the field is absent or null."""
    value = config.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not -(2**31) < value < 2**31:
        raise InputError(f"quantization field {field!r} is {shorten(repr(value))}; it must be a number")
    return value


def bits(config: Mapping[str, Any], field: str, default: float | None = None) -> float | None:
    """Bits of one element, more than 0 and at most 64."""
    value = number(config, field, default)
    if value is not None and not 0 < value <= MAX_BITS:
        raise InputError(f"quantization field {field!r} is {value}; bits of a weight lie between 1 and {MAX_BITS}")
    return value


def group_size(config: Mapping[str, Any], field: str, default: int) -> int:
    """Elements that share a scale; −1 means a whole row."""
    value = number(config, field, default)
    if value is None or value != int(value) or not (value == -1 or 0 < value <= MAX_GROUP):
        raise InputError(f"quantization field {field!r} is {value}; give -1 or a whole number up to {MAX_GROUP}")
    return int(value)


def block_shape(config: Mapping[str, Any], field: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, or None where the field is absent or null."""
    value = config.get(field)
    if value is None:
        return None
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or len(value) != 2
        or any(isinstance(side, bool) or not isinstance(side, int) or not 0 < side <= MAX_GROUP for side in value)
    ):
        raise InputError(f"quantization field {field!r} is {shorten(repr(value))}; give two sizes such as [128, 128]")
    return value[0], value[1]


def text(config: Mapping[str, Any], field: str) -> str:
    """A string in lower case, empty where the field is absent or null."""
    value = config.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"quantization field {field!r} is {shorten(repr(value))}; it must be a string")
    return value.lower()


def mapping(config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A nested object, empty where the field is absent or null."""
    value = config.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"quantization field {field!r} is {shorten(repr(value))}; it must be an object")
    return value
