"""Cards as ``--gpu h200-sxm:8`` names them, and the right form for other ways of saying it."""

from __future__ import annotations

import re

from trilemma.errors import InputError, UnknownName, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import find, find_measured

_MOST_GPUS = 2**20
#: Other ways in which people write how many cards they have: ``4xl40s``, ``4 x L40S``, ``4*l40s``; ``l40s x4``, ``l40s:x4``.
_COUNT_FIRST = re.compile(r"\s*([0-9]{1,6})\s*(?:[xX*]\s*|\s)([^\s:].*)", re.DOTALL)
_COUNT_LAST = re.compile(r"(.*[^\s:*])\s*(?:\s|:\s*|[*])\s*[xX]?\s*([0-9]{1,6})\s*[xX]?\s*", re.DOTALL)
_LONGEST = 200


def parse_gpu_argument(text: str) -> tuple[Accelerator, int]:
    """``h200-sxm:8`` → (accelerator, 8); without a count, 1. Raises `InputError`, with the right form where one is meant."""
    if not text.isascii():
        raise InputError(f"`gpu` {shorten(text)!r} holds characters that no name has; give a name such as h200-sxm:8")
    name, _, count = text.rpartition(":")
    if not states_count(text):
        name, count = text, "1"
    if not name.strip():
        raise InputError(f"`gpu` {shorten(text)!r} names no GPU; give a name such as h200-sxm or h200-sxm:8")
    if not re.fullmatch(r"[0-9]{1,9}", count) or not 1 <= int(count) <= _MOST_GPUS:
        raise InputError(f"`gpu` {shorten(text)!r}: {shorten(count)!r} GPUs is out of range; give 1 to {_MOST_GPUS}")
    try:
        return find(name), int(count)
    except UnknownName:
        meant = _meant(text)
        if meant is None:
            raise
    raise InputError(f"`gpu` {shorten(text)!r}: {meant}")


def states_count(text: str) -> bool:
    """Whether ``text`` says how many GPUs: ``h200-sxm:8`` does, ``h200-sxm`` does not."""
    name, colon, count = text.rpartition(":")
    return bool(colon and name and re.fullmatch(r"[+-]?[0-9_.,eE]*", count))


def _meant(text: str) -> str | None:
    """How to say what ``text`` seems to mean, in words that are taken; None where its parts are no names either."""
    if len(text) > _LONGEST:
        return None
    parts = [
        part.strip().rpartition(":") if states_count(part.strip()) else (part.strip(), "", "")
        for part in text.split(",")
    ]
    listed = [(_word(name), colon + count) for name, colon, count in parts]
    if len(listed) > 1 and all(name for name, _ in listed):
        together = "+".join(f"{name}{count}" for name, count in listed)
        return (
            f"cards are named one by one: give `gpu` once for each (compare), or {together} for one machine with both"
        )
    for name, count in _counted(text):
        if (known := _word(name)) is not None:
            return f"write {known}:{count}"
    name, colon, count = text.rpartition(":")
    known = _word(name) if colon else None
    return None if known is None else f"{shorten(count)!r} is no number of cards; write {known}:4"


def _counted(text: str) -> list[tuple[str, str]]:
    """(name, count) of every way to read a count out of ``text``."""
    found = []
    if (first := _COUNT_FIRST.fullmatch(text)) is not None:
        found.append((first[2].strip(), first[1]))
    if (last := _COUNT_LAST.fullmatch(text)) is not None:
        found.append((last[1].strip(), last[2]))
    return found


def _word(name: str) -> str | None:
    """The word by which the card that ``name`` means is taken: of several parts of one name the usual one."""
    try:
        find(name)
    except UnknownName:
        return None
    except InputError:
        return find_measured(name)[0].id.partition("-")[2]
    return name.lower()
