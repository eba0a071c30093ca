"""Where runs are kept: one SQLite file or a PostgreSQL server, each run a transaction of its own.

What `RunLedger.add` has returned for is on the disk: a process that is killed, a full disk or another writer lose nothing of it.
Writers wait for each other.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.runs.databases import Database, PostgresDatabase, SqliteDatabase, is_postgres, without_password
from trilemma.runs.run import MOST_BYTES, LedgerRun, RunEvent, checked_figure

#: Where the ledger lies unless told.
VARIABLE = "TRILEMMA_LEDGER"
#: Points of one series that are read at once.
_MOST_POINTS = 2_000_000
_COLUMNS = (
    "name", "started_s", "ended_s", "status", "model", "gpu", "gpus", "why", "git", "tags", "config", "machine", "figures",
    "estimate",
)  # fmt: skip
_JSON = frozenset({"tags", "config", "machine", "figures", "estimate"})


def ledger_path(given: str | None = None) -> Path | str:
    """The file or the PostgreSQL URL named, or that of ``TRILEMMA_LEDGER``, or the user's own file."""
    if given or os.environ.get(VARIABLE):
        named = given or os.environ[VARIABLE]
        if is_postgres(named):
            return named
        if "://" in named:
            raise InputError(
                f"`ledger` {shorten(without_password(named))} is no ledger; give a file or a postgresql:// URL"
            )
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "trilemma" / "runs.db"


class RunLedger:
    """The ledger at ``path`` (a file, or a PostgreSQL URL), made where it is not there unless ``must_exist``.

    Raises `InputError` for what is no ledger.
    """

    def __init__(self, path: Path | str, *, must_exist: bool = False) -> None:
        if is_postgres(path):
            self._database: Database = PostgresDatabase(str(path))
            self.path: Path | str = self._database.shown
            return
        self.path = Path(path)
        if must_exist and not self.path.is_file():
            raise InputError(f"there is no ledger at {shorten(str(path))}; record a run, or name one with `ledger`")
        with self._told("opened"):
            if not must_exist:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = SqliteDatabase(self.path)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> RunLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, run: LedgerRun) -> int:
        """Keep ``run``; its id. When this returns the run is on the disk."""
        marks = ", ".join("?" * len(_COLUMNS))
        with self._told("written"), self._writing():
            return self._database.insert(f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({marks})", _row(run))

    def change(self, run: LedgerRun) -> None:
        """Put ``run`` in the place of the one of its id."""
        told = ", ".join(f"{name} = ?" for name in _COLUMNS)
        with self._told("written"), self._writing():
            self._database.execute(f"UPDATE runs SET {told} WHERE id = ?", (*_row(run), run.id))

    def add_points(self, run: int, points: Sequence[tuple[str, float, float]]) -> None:
        """Keep (figure, seconds since 1970, value) of a run."""
        rows = [(run, name, float(at), checked_figure(name, value)) for name, at, value in points]
        with self._told("written"), self._writing():
            self._database.execute_many("INSERT INTO points VALUES (?, ?, ?, ?)", rows)

    def add_event(self, run: int, event: RunEvent) -> None:
        with self._told("written"), self._writing():
            self._database.execute(
                "INSERT INTO events VALUES (?, ?, ?)", (run, event.at_s, event.what[:_LONGEST_EVENT])
            )

    def runs(
        self, *, name: str | None = None, model: str | None = None, tag: str | None = None, most: int = 1000
    ) -> list[LedgerRun]:
        """The latest runs first, of a name, model or tag."""
        wanted = [(column, value) for column, value in (("name", name), ("model", model)) if value is not None]
        where = " AND ".join(f"{column} = ?" for column, _ in wanted)
        asked = f"SELECT id, {', '.join(_COLUMNS)} FROM runs {'WHERE ' + where if where else ''} ORDER BY id DESC"
        found = []
        with self._told("read"):
            for row in self._database.execute(asked, [value for _, value in wanted]):
                run = _run(row)
                if tag is None or tag in run.tags:
                    found.append(run)
                if len(found) == most:
                    break
        return found

    def run(self, which: str | int) -> LedgerRun:
        """The run of an id, or the latest of a name. Raises `InputError` where there is none."""
        asked = f"SELECT id, {', '.join(_COLUMNS)} FROM runs WHERE "
        by_id = isinstance(which, int) or which.isdecimal()
        with self._told("read"):
            if by_id:
                row = self._database.execute(f"{asked} id = ?", (int(str(which)[:18]),)).fetchone()
            else:
                row = self._database.execute(f"{asked} name = ? ORDER BY id DESC LIMIT 1", (which,)).fetchone()
        if row is None:
            raise InputError(f"no run {shorten(str(which))!r} in {shorten(str(self.path))}; see trilemma runs list")
        return _run(row)

    def points(self, run: int, figure: str) -> tuple[list[float], list[float]]:
        """(seconds since 1970, values) of a series, in order of time."""
        with self._told("read"):
            rows = self._database.execute(
                "SELECT at_s, value FROM points WHERE run = ? AND figure = ? ORDER BY at_s LIMIT ?",
                (run, figure, _MOST_POINTS),
            ).fetchall()
        return [row[0] for row in rows], [row[1] for row in rows]

    def series(self, run: int) -> list[str]:
        """The figures of which points are kept."""
        with self._told("read"):
            return [
                row[0] for row in self._database.execute("SELECT DISTINCT figure FROM points WHERE run = ?", (run,))
            ]

    def events(self, run: int) -> list[RunEvent]:
        with self._told("read"):
            rows = self._database.execute(
                "SELECT at_s, what FROM events WHERE run = ? ORDER BY at_s", (run,)
            ).fetchall()
        return [RunEvent(at_s=row[0], what=row[1]) for row in rows]

    def _writing(self) -> Any:
        """One transaction: all of it is on the disk, or nothing."""
        return self._database.transaction()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Errors of the disk and of files that are no ledger, in one line."""
        errors = self._database.errors if hasattr(self, "_database") else SqliteDatabase.errors
        try:
            yield
        except errors as error:
            why = f"the ledger {shorten(str(self.path))} cannot be {what}: {shorten(str(error), most=120)}"
            if type(error) is sqlite3.DatabaseError:  # what is in the file, no fault of the disk
                raise InputError(f"{why}; name another file with `ledger`") from None
            raise InputError(
                f"{why}; what was recorded before stands; free the disk, or name another file with `ledger`"
            ) from None


_LONGEST_EVENT = 500


def _row(run: LedgerRun) -> list[Any]:
    values = []
    for name in _COLUMNS:
        value = getattr(run, name)
        if name in _JSON:
            try:
                value = json.dumps(
                    value if not isinstance(value, Mapping) else dict(value), allow_nan=False, default=str
                )
            except (TypeError, ValueError, RecursionError) as error:
                raise InputError(f"`{name}` of a run is no plain data: {shorten(str(error))}") from None
            if len(value) > MOST_BYTES:
                raise InputError(f"`{name}` of a run takes {len(value):,} bytes; give at most {MOST_BYTES:,}")
        values.append(value)
    return values


def _run(row: Sequence[Any]) -> LedgerRun:
    """A row as a run. Raises `InputError` for a row that somebody else wrote."""
    try:
        told = {
            name: json.loads(value) if name in _JSON else value for name, value in zip(_COLUMNS, row[1:], strict=True)
        }
        return LedgerRun(id=row[0], **(told | {"tags": tuple(told["tags"])}))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"run {row[0]} of the ledger is broken: {shorten(str(error))}") from None
