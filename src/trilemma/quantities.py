"""Units and how quantities are read and shown. Inside the package bytes are bytes and seconds are seconds."""

from __future__ import annotations

import math
import re
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError, shorten

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9

Array: TypeAlias = NDArray[np.float64]
#: A number or an array of numbers, one per plan: every physics function takes both and broadcasts.
Numbers: TypeAlias = float | int | NDArray[Any]


def ceil_div(numerator: Numbers, denominator: Numbers) -> Any:
    """Integer division rounded up, for numbers and arrays alike; exact for integers of any size."""
    return -(-numerator // denominator)


def round_up(value: Numbers, multiple: Numbers) -> Any:
    """The least multiple of ``multiple`` that is not below ``value``."""
    return ceil_div(value, multiple) * multiple


_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmMgG]?)")
#: Engine spelling: a small letter is decimal, a capital letter is binary (vLLM's human-readable integers).
_COUNT_FACTORS = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def parse_count(text: str, *, what: str = "count", decimal: bool = False) -> int:
    """A whole number of tokens or sequences: ``4096``, ``128K`` (131,072), ``128k`` (128,000).

    ``decimal`` reads both cases of the letter as powers of ten. Raises `InputError` for anything else.
    """
    match = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is None:
        raise InputError(f"{what} {shorten(text)!r} is not a whole number such as 4096 or 128K")
    suffix = match.group(2).lower() if decimal else match.group(2)
    value = float(match.group(1)) * _COUNT_FACTORS[suffix]
    if value > 2**53 or value != math.floor(value):
        raise InputError(f"{what} {shorten(text)!r} is not a whole number such as 4096 or 128K")
    return int(value)


def show_gib(n_bytes: float, *, digits: int = 2) -> str:
    """``n_bytes`` in GiB for people."""
    return f"{n_bytes / GIB:,.{digits}f}"


def show_count(value: float) -> str:
    """A count with thousands separators and no decimals."""
    return f"{value:,.0f}"


def counted(number: float, noun: str, *, plural: str | None = None) -> str:
    """``number`` of ``noun`` in words: ``1 request``, ``2,048 tokens``; ``plural`` where it is not ``noun`` + s."""
    shown = show_count(number)
    return f"{shown} {noun}" if shown == "1" else f"{shown} {plural or f'{noun}s'}"


def show_usd(dollars: float, *, like: float | None = None) -> str:
    """Dollars for people, without the sign: cents from one dollar on, none from a thousand, below three digits that tell.

    ``like`` is the figure whose decimals are taken, so that a value and its range show alike.
    """
    size = abs(dollars if like is None else like)
    if size >= 1000:
        return f"{dollars:,.0f}"
    digits = 2 if size >= 1 or size == 0 else min(2 - math.floor(math.log10(size)), 8)
    return f"{dollars:,.{digits}f}"


def arrivals(rate: float) -> str:
    """``rate`` of requests in words: ``1 request a second``, ``2.5 requests a second``."""
    return f"{rate:g} request{'' if rate == 1 else 's'} a second"
