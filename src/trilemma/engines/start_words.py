"""A start read by a table of an engine's lines: what each measures, what refuses, what says that the server runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.engines.base import Stage
from trilemma.engines.start_log import Measured, Refusal, StartUpLog, literal_arguments, sentences, tightest
from trilemma.quantities import GIB, MIB

_MOST_SCANNED = 8192
_MOST_KEPT = 20_000
_MOST_TEXT = 200
_UNITS = {"GiB": GIB, "GB": GIB, "MiB": MIB, "MB": MIB}
#: A number, as lines print it.
NUMBER = r"(-?[0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?)"


@dataclass(frozen=True, kw_only=True, slots=True)
class LineKind:
    """``marker`` is a text that the line always holds, ``names`` what the groups of ``pattern`` measure.

    A name that ends in ``_bytes`` is printed in ``unit``; two groups of one name are summed (K and V of a cache).
    """

    marker: str
    pattern: re.Pattern[str]
    names: tuple[str, ...]
    unit: str = "GiB"


def line(marker: str, pattern: str, *names: str, unit: str = "GiB") -> LineKind:
    return LineKind(marker=marker, pattern=re.compile(pattern), names=names, unit=unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWords:
    """An engine's lines. ``summed`` names are added up by rank (buffers of one device); ``rank`` finds who speaks.

    ``begins`` is the first line of a server; ``version`` and ``model`` have one group; ``arguments`` is the text before
    a literal of all arguments; ``model_key`` the argument that names the model.
    """

    measuring: tuple[LineKind, ...]
    refusals: tuple[tuple[str, Refusal], ...]
    ready: tuple[str, ...]
    begins: re.Pattern[str]
    rank: re.Pattern[str]
    version: re.Pattern[str] | None = None
    version_prefix: str = ""
    model: re.Pattern[str] | None = None
    arguments: str = ""
    model_key: str = ""
    summed: frozenset[str] = frozenset()
    capturing: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts of which every line that is learnt from holds one."""
        own = (*(kind.marker for kind in self.measuring), *(mark for mark, _ in self.refusals), *self.ready)
        return tuple(dict.fromkeys((*own, *self.capturing, *((self.arguments,) if self.arguments else ()))))


class WordsReader:
    """Gathers one start; a new server's first line begins anew."""

    def __init__(self, words: StartWords) -> None:
        self._words = words
        self._starts = 0
        self._begin()

    def _begin(self) -> None:
        self._version: str | None = None
        self._model: str | None = None
        self._arguments: dict[str, Any] = {}
        self._lines: list[Measured] = []
        self._ready = self._capturing = False
        self._refusal: Refusal | None = None
        self._outcome: Stage | None = None
        self._reason: Measured | None = None

    def take(self, line: str, line_number: int) -> None:
        """The next line of the log."""
        words, scanned = self._words, line[:_MOST_SCANNED]
        if words.begins.search(scanned):
            if self._lines or self._refusal:
                self._begin()
            self._starts += 1
        if words.version is not None and self._version is None and (found := words.version.search(scanned)):
            self._version = f"{words.version_prefix}{found[1]}"
        if words.model is not None and (found := words.model.search(scanned)):
            self._model = found[1]
        if words.arguments and words.arguments in line and not self._arguments:
            self._arguments = literal_arguments(line.split(words.arguments, 1)[1])
        self._measure(scanned, line_number)
        self._ready = self._ready or any(mark in scanned for mark in words.ready)
        self._capturing = self._capturing or any(mark in scanned for mark in words.capturing)
        refusal = next((kind for mark, kind in words.refusals if mark in scanned), None)
        if refusal is not None and self._refusal is None:
            self._refusal, self._outcome = refusal, self._stage(refusal)
            self._reason = Measured(name="reason", value=0.0, line_number=line_number, text=sentences(scanned.strip()))

    def _measure(self, scanned: str, line_number: int) -> None:
        for kind in self._words.measuring:
            if kind.marker not in scanned or not (found := kind.pattern.search(scanned)):
                continue
            values: dict[str, float] = {}
            for name, text in zip(kind.names, found.groups(), strict=True):
                if text is not None:
                    number = float(text.replace(",", ""))
                    scale = _UNITS[kind.unit] if name.endswith("_bytes") else 1.0
                    values[name] = values.get(name, 0.0) + (round(number * scale) if scale > 1 else number)
            rank = self._words.rank.search(scanned[:300])
            for name, value in values.items():
                if len(self._lines) < _MOST_KEPT:
                    text = " ".join(scanned.split())[:_MOST_TEXT]
                    self._lines.append(
                        Measured(
                            name=name, value=value, line_number=line_number, text=text, rank=rank[1] if rank else None
                        )
                    )

    def _stage(self, refusal: Refusal) -> Stage | None:
        seen = {one.name for one in self._lines}
        if refusal == "configuration":
            return None
        if refusal == "context":
            return "kv_too_small"
        if refusal == "no_kv_memory":
            return "oom_profile"
        if self._ready:
            return "oom_runtime"
        if self._capturing or "kv_cache_tokens" in seen or "kv_cache_bytes" in seen:
            return "oom_capture"
        return "oom_profile" if "weights_bytes" in seen else "oom_load"

    def result(self, path: str) -> StartUpLog:
        """What the lines said of the last start."""
        outcome = "ok" if self._refusal is None and self._ready else self._outcome
        model = self._arguments.get(self._words.model_key) or self._model
        return StartUpLog(
            path=path,
            version=self._version,
            model=str(model) if model else None,
            arguments=self._arguments,
            measured=tightest(_added(self._lines, self._words.summed)),
            lines=tuple(self._lines),
            outcome=outcome,
            refusal=self._refusal,
            reason=self._reason,
            starts=max(self._starts, 1),
        )


def _added(lines: list[Measured], summed: frozenset[str]) -> list[Measured]:
    """The lines, those of ``summed`` names added up by rank at the place of the last."""
    kept = [one for one in lines if one.name not in summed]
    sums: dict[tuple[str, str | None], Measured] = {}
    for one in lines:
        if one.name in summed:
            before = sums.get((one.name, one.rank))
            value = one.value + (0.0 if before is None else before.value)
            sums[one.name, one.rank] = Measured(
                name=one.name, value=value, line_number=one.line_number, text=one.text, rank=one.rank
            )
    return [*kept, *sums.values()]


def flags_from(arguments: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Of ``arguments`` those that ``names`` holds with another value than the default there."""
    return {name: arguments[name] for name, default in names.items() if arguments.get(name) not in (None, default)}
