"""The two databases that hold a ledger: a SQLite file, or a PostgreSQL server by its URL (extra ``ledger``).

Both acknowledge a transaction when it is on the disk (``synchronous=FULL``; PostgreSQL's ``synchronous_commit`` as its server
has it, on by default). Statements are written with ``?`` for values.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from trilemma.errors import InputError, shorten

VERSION = 1
_WAIT_S = 60.0
_POSTGRES = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_TABLES = (
    """CREATE TABLE IF NOT EXISTS runs (
  id {id}, name TEXT NOT NULL, started_s DOUBLE PRECISION NOT NULL, ended_s DOUBLE PRECISION, status TEXT NOT NULL,
  model TEXT NOT NULL, gpu TEXT NOT NULL, gpus INTEGER, why TEXT NOT NULL, git TEXT NOT NULL, tags TEXT NOT NULL,
  config TEXT NOT NULL, machine TEXT NOT NULL, figures TEXT NOT NULL, estimate TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS runs_by_name ON runs (name, started_s)",
    """CREATE TABLE IF NOT EXISTS points (
  run {reference} NOT NULL REFERENCES runs, figure TEXT NOT NULL, at_s DOUBLE PRECISION NOT NULL,
  value DOUBLE PRECISION NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS points_by_run ON points (run, figure, at_s)",
    """CREATE TABLE IF NOT EXISTS events (
  run {reference} NOT NULL REFERENCES runs, at_s DOUBLE PRECISION NOT NULL, what TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS events_by_run ON events (run, at_s)",
)


class Database(Protocol):
    """What the ledger asks of a database. ``errors`` are those that are told in a line, ``shown`` names it without a password."""

    shown: str
    errors: tuple[type[Exception], ...]

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any: ...
    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None: ...
    def insert(self, statement: str, values: Sequence[Any]) -> int: ...
    def transaction(self) -> Any: ...
    def close(self) -> None: ...


def is_postgres(place: str | Path) -> bool:
    return _POSTGRES.match(str(place)) is not None


def without_password(url: str) -> str:
    """``url`` as it may be printed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "postgresql://…"
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme}://{user}{host}{f':{port}' if port else ''}{parts.path}"


class SqliteDatabase:
    """One file, written ahead, synchronised at every commit; writers wait for each other."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)

    def __init__(self, path: Path) -> None:
        self.shown = shorten(str(path))
        self.connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        _check(version, self.shown)
        if version < VERSION:
            with self.transaction():
                for statement in _TABLES:
                    self.execute(statement.format(id="INTEGER PRIMARY KEY", reference="INTEGER"))
                self.execute(f"PRAGMA user_version={VERSION}")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self.connection.execute(statement, values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self.connection.executemany(statement, rows)

    def insert(self, statement: str, values: Sequence[Any]) -> int:
        return int(self.connection.execute(statement, values).lastrowid or 0)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it is on the disk, or nothing."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self.connection.close()


class PostgresDatabase:
    """A server, by ``postgresql://user@host:port/database``; the tables are made where they are not there."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise InputError("a ledger in PostgreSQL needs psycopg; install trilemma[ledger]") from None
        self.shown = without_password(url)
        self.errors: tuple[type[Exception], ...] = (psycopg.Error, OSError)
        try:
            self.connection = psycopg.connect(url, autocommit=True, connect_timeout=15)
        except psycopg.Error as error:
            why = shorten((str(error).strip().splitlines() or ["no answer"])[0], most=160)
            raise InputError(
                f"the ledger {self.shown} cannot be opened: {why}; start the server, or name a file with `ledger`"
            ) from None
        with self.transaction():
            self.execute("SELECT pg_advisory_xact_lock(7461)")  # two that open an empty one at once
            self.execute("CREATE TABLE IF NOT EXISTS ledger_version (version INTEGER NOT NULL)")
            found = self.execute("SELECT max(version) FROM ledger_version").fetchone()[0]
            _check(found or 0, self.shown)
            if not found:
                for statement in _TABLES:
                    self.execute(
                        statement.format(id="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", reference="BIGINT")
                    )
                self.execute("INSERT INTO ledger_version VALUES (?)", (VERSION,))

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self.connection.execute(statement.replace("?", "%s"), [_plain(one) for one in values])

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)

    def insert(self, statement: str, values: Sequence[Any]) -> int:
        return int(self.execute(f"{statement} RETURNING id", values).fetchone()[0])

    def transaction(self) -> Any:
        return self.connection.transaction()

    def close(self) -> None:
        self.connection.close()


def _plain(value: Any) -> Any:
    """PostgreSQL's text holds no NUL."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _check(version: int, shown: str) -> None:
    if version > VERSION:
        raise InputError(f"{shown} was written by a later trilemma; use that one")
