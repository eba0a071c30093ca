"""Options out of a command's words, and numbers out of options: strict, with errors that name the flag and the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.quantities import parse_count

_NUMBER = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?")
_WORDS_OF_TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Flag → its words, in order given (the last occurrence counts); names that no list holds; words that are no option."""

    words: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    dashes: str = "--"

    def has(self, *names: str) -> bool:
        return any(name in self.words for name in names)

    def text(self, *names: str) -> str | None:
        """The value of the first of ``names`` that is given, None where none is or it stands alone."""
        for name in names:
            if name in self.words:
                return self.words[name][0] if self.words[name] else None
        return None

    def on(self, *names: str) -> bool:
        """Whether a switch is given and not given as false."""
        for name in names:
            if name in self.words:
                return truth(self.words[name][0], f"{self.dashes}{name}") if self.words[name] else True
        return False

    def whole(self, *names: str, low: int = 1) -> int | None:
        """A whole number of at least ``low``; None where it is not given. Raises `InputError`."""
        for name in names:
            if name in self.words:
                value = self.words[name][0] if self.words[name] else ""
                return whole(value, f"{self.dashes}{name}", low=low)
        return None

    def real(self, *names: str, low: float = 0.0) -> float | None:
        for name in names:
            if name in self.words:
                value = self.words[name][0] if self.words[name] else ""
                return real(value, f"{self.dashes}{name}", low=low)
        return None


def read_options(
    words: Sequence[str],
    *,
    switches: Collection[str] = (),
    values: Collection[str] = (),
    lists: Collection[str] = (),
    fold: bool = False,
) -> Options:
    """Options of ``words`` by their known arity; a name in no list takes what follows up to the next option.

    ``fold`` reads dashes in names as underscores. A known value flag at the end, or followed by another option, is kept
    without a word and refused when its number is asked for.
    """
    found: dict[str, tuple[str, ...]] = {}
    unknown: list[str] = []
    positional: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_option(word):
            positional.append(word)
            continue
        name, sign, attached = word[2:].partition("=")
        name = name.replace("-", "_") if fold else name
        known = name in switches or name in values or name in lists
        if not known:
            unknown.append(f"--{name}")
        taken: list[str] = [attached] if sign else []
        if not sign:
            most = 1 if name in values or name in switches else len(words)
            while at < len(words) and len(taken) < most and not _is_option(words[at]):
                if name in switches and words[at].lower() not in _WORDS_OF_TRUTH:
                    break
                taken.append(words[at])
                at += 1
        found[name] = tuple(taken)
    return Options(words=found, unknown=tuple(unknown), positional=tuple(positional))


def _is_option(word: str) -> bool:
    return word.startswith("--") and len(word) > 2 and not _NUMBER.fullmatch(word)


def whole(value: Any, name: str, *, low: int = 1, high: int = 2**40) -> int:
    """A whole number from a word or a value of a file. Raises `InputError` naming ``name`` and what would be right."""
    wanted = f"give a whole number of at least {low}"
    if isinstance(value, str):
        if value.strip().startswith("$"):
            raise InputError(f"{name} {shorten(value)!r} is a shell variable without a value here; write its value")
        try:
            value = int(value) if low < 0 and _NUMBER.fullmatch(value.strip()) else parse_count(value, what=name)
        except (InputError, ValueError):
            raise InputError(f"{name} {shorten(value)!r} is not a whole number; {wanted}") from None
    if isinstance(value, float) and math.isfinite(value) and value == math.floor(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} {shorten(str(value))} is not a whole number; {wanted}")
    if not low <= value <= high:
        raise InputError(f"{name} {value} is out of range; {wanted}")
    return value


def real(value: Any, name: str, *, low: float = 0.0, high: float = 1e18) -> float:
    """A finite number of at least ``low``. Raises `InputError`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} {shorten(str(value))!r} is not a number; give one of at least {low:g}") from None
    if isinstance(value, bool) or not math.isfinite(number) or not low <= number <= high:
        raise InputError(f"{name} {shorten(str(value))} is out of range; give a number of at least {low:g}")
    return number


def truth(value: Any, name: str) -> bool:
    """True or false from a word or a value of a file. Raises `InputError`."""
    if isinstance(value, bool):
        return value
    known = _WORDS_OF_TRUTH.get(str(value).strip().lower())
    if known is None:
        raise InputError(f"{name} {shorten(str(value))!r} is neither true nor false; give one of them")
    return known
