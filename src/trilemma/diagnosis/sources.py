"""Files from outside as bounded streams of bytes: plain or gzip, from a path, a folder or standard input."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trilemma import outside_files
from trilemma.errors import InputError, shorten

HEAD = 1 << 16
#: A file may unpack to this much; a bomb stops here.
MOST_UNPACKED = 4 << 30
MOST_FILES = 20_000
_LONGEST_LINE = 1 << 16


class Unreadable(Exception):
    """A file that cannot be read to any use; the message says why."""


class Source:
    """A stream of bytes that counts what it gives and keeps its head.

    A stream that breaks off (a truncated or damaged gzip) ends; ``broken`` then says how.
    """

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self.name = name
        self.broken: str | None = None
        self._given = 0
        self._stream = stream
        start = self._raw(2)
        if start == b"\x1f\x8b":
            self._stream = gzip.GzipFile(fileobj=_Prefixed(start, stream))  # type: ignore[assignment]
            start = b""
        self.head = start
        while len(self.head) < HEAD and (more := self._raw(HEAD - len(self.head))):
            self.head += more
        self._pending = self.head

    def _raw(self, size: int) -> bytes:
        try:
            given = self._stream.read(size)
        except outside_files.BROKEN as error:
            self.broken = shorten(str(error)) or type(error).__name__
            return b""
        self._given += len(given)
        if self._given > MOST_UNPACKED:
            self.broken = f"it unpacks to more than {MOST_UNPACKED >> 30} GiB"
            return b""
        return given

    def read(self, size: int = 1 << 20) -> bytes:
        """The next bytes, empty at the end."""
        if self._pending:
            given, self._pending = self._pending, b""
            return given
        return self._raw(size)

    def all(self, most: int) -> bytes:
        """Everything; raises `Unreadable` beyond ``most`` bytes."""
        whole = bytearray()
        while chunk := self.read():
            whole += chunk
            if len(whole) > most:
                raise Unreadable(f"it is larger than the {most >> 20} MiB that are read of a file of its kind")
        return bytes(whole)

    def lines(self) -> Iterator[bytes]:
        """Lines without their end; the rest of a line beyond 64 KiB is left out. UTF-16 with a mark becomes UTF-8."""
        if self.head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            text = self.all(64 << 20).decode("utf-16", errors="replace")
            for line in text.splitlines():
                yield line.encode()[:_LONGEST_LINE]
            return
        rest, skipping = b"", False
        while chunk := self.read():
            rows = (rest + chunk).split(b"\n")
            rest = rows.pop()
            for row in rows:
                if skipping:
                    skipping = False
                else:
                    yield row[:_LONGEST_LINE]
            if len(rest) > _LONGEST_LINE:
                if not skipping:
                    yield rest[:_LONGEST_LINE]
                rest, skipping = b"", True
        if rest and not skipping:
            yield rest[:_LONGEST_LINE]


class _Prefixed(io.RawIOBase):
    """A stream with bytes put back before it: standard input cannot be wound back."""

    def __init__(self, start: bytes, stream: IO[bytes]) -> None:
        self._start, self._stream = start, stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._start:
            given, self._start = self._start, b""
            return given
        return self._stream.read(size)


def files_of(paths: Sequence[str | Path]) -> list[str]:
    """Names of the files meant: ``-`` for standard input, a folder for every file in it, hidden ones left out."""
    if not paths:
        raise InputError("nothing to diagnose; name files or folders, or - for standard input")
    found: dict[str, None] = {}
    for path in paths:
        place = Path(path)
        if str(path) == "-":
            found["-"] = None
        elif place.is_dir():
            inside = (one for one in sorted(place.rglob("*")) if not any(
                part.startswith(".") for part in one.relative_to(place).parts))  # fmt: skip
            for one in inside:
                if one.is_file():
                    found[str(one)] = None
                if len(found) > MOST_FILES:
                    raise InputError(f"{shorten(str(path))} holds more than {MOST_FILES} files; name a part of it")
        elif place.exists():
            found[str(path)] = None
        else:
            raise InputError(f"{shorten(str(path))} does not exist; name a file, a folder, or - for standard input")
    if not found:
        raise InputError(f"no file in {shorten(', '.join(map(str, paths)))}; name files or folders that hold some")
    return list(found)


@contextmanager
def opened(name: str) -> Iterator[Source]:
    """The file as a `Source`; raises `Unreadable` where the system refuses it."""
    if name == "-":
        yield Source("-", sys.stdin.buffer)
        return
    try:
        stream = outside_files.opened(name)
    except (OSError, ValueError) as error:
        raise Unreadable(outside_files.reason(error)) from None
    with stream:
        yield Source(name, stream)
