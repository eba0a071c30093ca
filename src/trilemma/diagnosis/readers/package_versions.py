"""Versions of libraries: ``pip freeze``, ``pip list``, ``conda list``, and what ``collect_env.py`` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "package-versions"
_MOST = 4096
_VERSION = r"v?(\d{1,6}(?:\.\d{1,6}){0,4}(?:[.+-]?[a-zA-Z][\w.+-]{0,40})?(?:\+[\w.]{1,40})?)"
_PINNED = re.compile(rf"^(?:\[(?:pip3?|conda)\] )?([A-Za-z][\w.-]{{1,60}})(?:==|\s+){_VERSION}(?:\s|;|$)")


class _Gatherer:
    def __init__(self) -> None:
        self._found: dict[str, Event] = {}

    def take(self, record: str, where: int) -> None:
        stated = _stated().match(record)
        found = stated or _PINNED.match(record)
        if found is None:
            return
        name = _table()["named"].get(found[1].lower(), found[1].lower().replace("_", "-"))
        if (stated or name in watched()) and len(self._found) < _MOST:
            values: dict[str, Any] = {"package": name, "version": found[2]}
            self._found.setdefault(name, Event(name="version", line=where, values=values))

    def part(self) -> Part | None:
        if not self._found:
            return None
        facts = {"versions": {event.values["package"]: event.values["version"] for event in self._found.values()}}
        return Part(kind=KIND, weight=len(self._found), facts=facts, events=tuple(self._found.values()))


@cache
def _table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_data("diagnosis/known_bad.toml")
    return found


@cache
def watched() -> frozenset[str]:
    """Packages of which something is known (data/diagnosis/known_bad.toml) or that others are told by."""
    return frozenset(_table()["watched"])


@cache
def _stated() -> re.Pattern[str]:
    """Lines such as ``PyTorch version: 2.4.0+cu121``."""
    words = "|".join(map(re.escape, _table()["named"]))
    return re.compile(rf"^\s*({words})\s*: ?{_VERSION}", re.IGNORECASE)


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=tuple(_table()["marks"]))
