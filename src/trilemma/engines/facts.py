"""One reader for what engines do by version: rows of ``data/engines/<engine>.toml``, nothing computed.

A file has ``newest``, a ``release`` for each dated version and ``fact`` rows, each of which holds from its ``since`` until a
later row of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar

from trilemma.data.files import read_data
from trilemma.engines import coefficients
from trilemma.engines.coefficients import ChangedRows, MemoryCoefficients
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.versions import Version, in_force, padded, parse_version, version_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts in force for one version; an engine adds a field for each name of its data file, where the sources stand.

    ``coefficients`` are those of its memory (`trilemma.engines.coefficients`). ``known`` is False for a version newer than every
    recorded one or not given: its intervals are widened.
    """

    version: str
    known: bool
    sources: Mapping[str, str]
    coefficients: MemoryCoefficients
    warnings: tuple[PlanWarning, ...] = ()


F = TypeVar("F", bound=Facts)


@dataclass(frozen=True, slots=True)
class FactFile(Generic[F]):
    """The facts of one engine: ``file`` below ``data/engines``, the engine's own name, the class that holds them.

    ``shaped`` turns values as TOML has them into those of the class. ``release_numbers`` says how many numbers of a version
    make a release: later ones do not make it newer than all that are known.
    """

    file: str
    engine: str
    kind: Callable[..., F]
    shaped: Callable[[dict[str, Any]], dict[str, Any]] = dict
    release_numbers: int = 2

    def for_version(self, version: str | None, *, date: str | None = None, changed: ChangedRows | None = None) -> F:
        """Facts of ``version``; without one the release of ``date`` (ISO), else the newest, marked so.

        A fork's own number is not trusted when it carries a build date ("0.11.2.dev280 (fork build of 2026-08-10)"): the
        release of that date is taken. Coefficients are those of the rows ``changed`` where they name this file. Raises
        `InputError` for text without a version in it.
        """
        found, rows = self._shipped(version, date), (changed or {}).get(self.file)
        if rows is None:
            return found
        return replace(found, coefficients=coefficients.at(rows, self._numbers(found.version), engine=self.engine))

    def _shipped(self, version: str | None, date: str | None) -> F:
        asked = (version or "").strip()
        built = re.search(r"fork build of (\d{4}-\d{2}(?:-\d{2})?)", asked)
        if built is not None:
            message = f"{self.engine} {shorten(asked)}: a fork, read as the release of its build date"
            return self._at(self.release_of(built.group(1)), PlanWarning(code="fork-version", message=message))
        if not asked:
            return self._without_version(date)
        numbers, newest = self._numbers(asked), self._newest()
        if padded(numbers)[: self.release_numbers] > padded(newest)[: self.release_numbers]:
            known = self.data()["newest"]
            message = f"{self.engine} {shorten(asked)} is newer than the facts known ({known}); they are used, widened"
            return self._at(numbers, PlanWarning(code="newer-engine", message=message))
        if padded(numbers) < padded(self._oldest()):
            first = version_text(self._oldest(), engine=self.engine)
            message = (
                f"{self.engine} {shorten(asked)} is older than the facts known ({first} on); they are used, widened"
            )
            return self._at(numbers, PlanWarning(code="older-engine", message=message))
        return self._at(numbers)

    def release_of(self, date: str) -> Version:
        """The newest release out on ``date`` (``2026-04-22``; a month or year alone means its middle), else the oldest."""
        if re.fullmatch(r"\d{4}(-\d{2}(-\d{2})?)?", date) is None:
            raise InputError(f"date {shorten(date)!r} is not a date such as 2026-04-22")
        day = date + {4: "-07-01", 7: "-15"}.get(len(date), "")
        releases = self.data()["release"]
        out = [row["version"] for row in releases if str(row["date"]) <= day]
        return self._numbers(str(out[-1] if out else releases[0]["version"]))

    def data(self) -> dict[str, Any]:
        """The file as read; not to be changed in place."""
        return _read(self.file)

    def _newest(self) -> Version:
        return self._numbers(str(self.data()["newest"]))

    def _oldest(self) -> Version:
        return min(self._numbers(str(row["since"])) for row in self.data()["fact"])

    def _numbers(self, text: str) -> Version:
        return parse_version(text, engine=self.engine)

    def _without_version(self, date: str | None) -> F:
        numbers = self.release_of(date) if date else self._newest()
        shown = version_text(numbers, engine=self.engine)
        which = f"{shown}, the release of {date}" if date else f"the newest known, {shown}"
        message = f"no {self.engine} version given: {which}"
        return self._at(numbers, PlanWarning(code="assumed-engine-version", message=message))

    def _at(self, numbers: Version, *warnings: PlanWarning) -> F:
        rows = _rows(self.file, self.engine, numbers)
        values = self.shaped({name: row["value"] for name, row in rows.items()})
        return self.kind(
            version=version_text(numbers, engine=self.engine),
            known=not warnings,
            sources={name: str(row["source"]) for name, row in rows.items()},
            coefficients=coefficients.in_force(self.file, numbers, engine=self.engine),
            warnings=warnings,
            **values,
        )


@cache
def _read(file: str) -> dict[str, Any]:
    return read_data(f"engines/{file}")


@cache
def _rows(file: str, engine: str, numbers: Version) -> dict[str, dict[str, Any]]:
    return in_force(_read(file)["fact"], numbers, engine=engine)
