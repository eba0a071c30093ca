"""The log of an engine's start, read whole, for those who hold a prediction against it."""

from __future__ import annotations

import re

from trilemma import engines
from trilemma.diagnosis.sources import Unreadable, opened
from trilemma.engines.start_log import StartUpLog
from trilemma.errors import InputError, shorten

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")


def start_in(path: str, engine: str | None = None) -> tuple[str, StartUpLog]:
    """The engine, and what its start printed, of a log, plain or gzip; of ``engine`` where it is known.

    Raises `InputError` for a file that cannot be read and for one that holds no line of a start.
    """
    readers = engines.log_readers()
    if engine is not None and engine not in readers:
        known = " or ".join(engines.traits_of(name).label for name in readers)
        raise InputError(f"--log reads logs of {known}; those of {engine} are not read yet, leave it out")
    asked = {name: begin() for name, (_, begin) in readers.items() if engine in (None, name)}
    try:
        with opened(path) as source:
            if b"\0" in source.head and source.head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
                raise Unreadable("it is not text; give the log as the engine printed it")
            for number, line in enumerate(source.lines(), start=1):
                text = _COLOUR.sub("", line.decode("utf-8", errors="replace").rstrip("\r")).removeprefix("\ufeff")
                for one in asked.values():
                    one.take(text, number)
            if source.broken:
                raise Unreadable(source.broken)
    except Unreadable as error:
        raise InputError(f"--log {shorten(str(path))} cannot be read: {error}") from None
    told = [(name, found) for name, one in asked.items() if says_something(found := one.result(str(path)))]
    if not told:
        labels = " or ".join(engines.traits_of(name).label for name in asked)
        raise InputError(
            f"--log {shorten(str(path))} holds no line of a {labels} start; give what the engine printed until it served"
            " or failed"
        )
    return max(told, key=lambda one: len(one[1].lines))


def says_something(log: StartUpLog) -> bool:
    """Whether any line of a start was in it."""
    return bool(log.lines or log.outcome or log.refusal or log.model or log.version)
