"""Regular expressions out of files, matched in bounded time.

A checkpoint's patterns are hostile until shown otherwise, and `re` backtracks: ``^.?.?…!`` keeps it busy for years. Here all
expressions of a list become one non-deterministic automaton that is walked character by character (Thompson 1968), with the
sets of states it meets remembered as a deterministic one, so that cost is characters × states at worst. States and steps are
counted: a list that would take too many is refused instead of waited for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.foreign_words import unwarned

#: States of one list of expressions, and states visited while it is matched: about a second of work.
_MOST_STATES = 60_000
_MOST_STEPS = 2_000_000
_TOO_MUCH = "repeats too deeply to be matched safely; simplify it"


class _Unsupported(Exception):
    """A construct that needs backtracking: lookaround, backreference, atomic group, flag."""


class Automaton:
    """Expressions compiled together: `matches` says whether any of them matches at the start of a text.

    Raises `InputError` for expressions that do not parse, that need backtracking, or that are too large together.
    """

    def __init__(self, expressions: Iterable[str]) -> None:
        #: state → what it consumes (None: nothing) and where it leads.
        self._consumes: list[Any] = []
        self._next: list[tuple[int, ...]] = []
        self._accept = self._state(None)
        self._end = self._state(None)  # accepted only where the text ends
        self._steps = 0
        starts = [self._compiled(text) for text in expressions]
        self._start = self._closure(starts)
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        """Whether an expression matches a beginning of ``text`` (all of it where the expression ends in ``$``)."""
        states = self._start
        for sign in text:
            if self._accept in states:
                return True
            following = self._known.get((states, sign))
            if following is None:
                following = self._closure(
                    target
                    for state in states
                    if (wanted := self._consumes[state]) is not None and _takes(wanted, sign)
                    for target in self._next[state]
                )
                self._count(len(states) + len(following))
                self._known[states, sign] = following
            states = following
            if not states:
                return False
        return self._accept in states or self._end in states

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise InputError(
                "the module patterns of this checkpoint take too long to match; write fewer or simpler ones"
            )

    def _closure(self, starts: Iterable[int]) -> frozenset[int]:
        """``starts`` and every state reached from them without consuming a character."""
        seen: set[int] = set()
        waiting = list(starts)
        while waiting:
            state = waiting.pop()
            if state not in seen:
                seen.add(state)
                if self._consumes[state] is None:
                    waiting.extend(self._next[state])
        self._count(len(seen))
        return frozenset(seen)

    def _state(self, consumes: Any, *following: int) -> int:
        if len(self._consumes) >= _MOST_STATES:
            raise _Unsupported
        self._consumes.append(consumes)
        self._next.append(following)
        return len(self._consumes) - 1

    def _compiled(self, text: str) -> int:
        """The state at which an expression begins. Built from its end, so that every state knows where it leads."""
        try:
            with unwarned():
                parsed = _parser.parse(text)
            if parsed.state.flags & ~re.UNICODE:
                raise _Unsupported
            return self._sequence(list(parsed), self._accept, first=True)
        except _Unsupported:
            raise InputError(f"module pattern {shorten('re:' + text)!r} {_TOO_MUCH}") from None
        except (re.error, OverflowError, RecursionError):
            raise InputError(
                f"module pattern {shorten('re:' + text)!r} is not a regular expression; correct it"
            ) from None

    def _sequence(self, parts: list[Any], target: int, *, first: bool = False) -> int:
        for at in range(len(parts) - 1, -1, -1):
            target = self._part(parts[at], target, first=first and at == 0)
        return target

    def _part(self, part: Any, target: int, *, first: bool) -> int:
        """The state that matches one parsed part and then goes on at ``target``."""
        kind, value = part
        if kind is sre.LITERAL or kind is sre.NOT_LITERAL or kind is sre.ANY or kind is sre.IN:
            return self._state((kind, value), target)
        if kind is sre.BRANCH:
            return self._state(None, *(self._sequence(list(way), target, first=first) for way in value[1]))
        if kind is sre.SUBPATTERN:
            _, added, removed, inner = value
            if added or removed:
                raise _Unsupported
            return self._sequence(list(inner), target, first=first)
        if kind is sre.MAX_REPEAT or kind is sre.MIN_REPEAT:
            return self._repeat(value[0], value[1], value[2], target)
        if kind is sre.AT and value in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING) and first:
            return target
        if kind is sre.AT and value in (sre.AT_END, sre.AT_END_STRING) and target == self._accept:
            return self._end
        raise _Unsupported

    def _repeat(self, least: int, most: int, inner: Any, target: int) -> int:
        """``inner`` ``least`` to ``most`` times. An end inside a repeat is no end, so it is refused by `_part`."""
        parts = list(inner)
        if most is sre.MAXREPEAT:
            loop = self._state(None)
            body = self._sequence(parts, loop)
            self._next[loop] = (body, target)
            target = loop
        else:
            after = target
            for _ in range(most - least):
                target = self._state(None, self._sequence(parts, target), after)
        for _ in range(least):
            target = self._sequence(parts, target)
        return target


def _takes(wanted: tuple[Any, Any], sign: str) -> bool:
    """Whether a consuming state takes the character ``sign``."""
    kind, value = wanted
    if kind is sre.ANY:
        return sign != "\n"
    if kind is sre.IN:
        return _in_class(value, sign)
    return bool((ord(sign) == value) == (kind is sre.LITERAL))


def _in_class(members: Any, sign: str) -> bool:
    """Whether a character class such as ``[^0-9_]`` or ``\\d`` holds ``sign``."""
    inside, negated, code = False, False, ord(sign)
    for kind, value in members:
        if kind is sre.NEGATE:
            negated = True
        elif kind is sre.LITERAL:
            inside |= code == value
        elif kind is sre.RANGE:
            inside |= value[0] <= code <= value[1]
        else:
            inside |= _in_category(value, sign)
    return inside != negated


def _in_category(category: Any, sign: str) -> bool:
    digit, space, word = sign.isdecimal(), sign.isspace(), sign.isalnum() or sign == "_"
    known = {
        sre.CATEGORY_DIGIT: digit, sre.CATEGORY_NOT_DIGIT: not digit,
        sre.CATEGORY_SPACE: space, sre.CATEGORY_NOT_SPACE: not space,
        sre.CATEGORY_WORD: word, sre.CATEGORY_NOT_WORD: not word,
    }  # fmt: skip
    if category not in known:
        raise InputError("module patterns hold a class of characters that is not known; write it as [...]")
    return known[category]
