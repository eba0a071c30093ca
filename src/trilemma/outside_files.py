"""Files named from outside. Reading is bounded: one that never ends, or waits for a writer that never comes, is refused."""

from __future__ import annotations

import errno
import os
import select
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from trilemma.errors import InputError, shorten

#: How long a named pipe may wait for its first byte where nobody holds its other end.
_WAIT_MS = 2000
#: What reading a file raises that breaks off.
BROKEN = (OSError, EOFError, zlib.error)


def opened(path: str | Path) -> BufferedReader:
    """``path`` as a stream of bytes. Raises `OSError`, and `ValueError` for what can be no path."""
    return open(path, "rb", opener=_without_waiting)


@contextmanager
def unpacked(path: str | Path) -> Iterator[IO[bytes]]:
    """As `opened`, what gzip packed unpacked. Reading raises one of `BROKEN` where a file is damaged."""
    with opened(path) as stream:
        if stream.peek(2)[:2] != b"\x1f\x8b":
            yield stream
            return
        import gzip

        with gzip.GzipFile(fileobj=stream) as file:
            yield cast(IO[bytes], file)


def read_bytes(path: str | Path, *, most_bytes: int, give: str = "give another file", what: str = "") -> bytes:
    """All of a file. Raises `InputError` where it cannot be read or is larger than ``most_bytes``.

    ``give`` says what would be right, ``what`` the option or the kind of file, for the message.
    """
    try:
        with opened(path) as stream:
            found = stream.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{_named(what, path)} cannot be read: {reason(error)}; {give}") from None
    if len(found) > most_bytes:
        raise InputError(f"{_named(what, path)} is larger than {most_bytes:,} bytes; {give}")
    return found


def read_text(
    path: str | Path, *, most_bytes: int = 2**20, give: str = "give the path of a text file", what: str = ""
) -> str:
    """As `read_bytes`, as text in UTF-8, a mark before it left out."""
    try:
        return read_bytes(path, most_bytes=most_bytes, give=give, what=what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{_named(what, path)} is not UTF-8 text (byte {error.start}); {give}") from None


@contextmanager
def written(path: str | Path, *, what: str = "", give: str = "give another file") -> Iterator[None]:
    """Around what writes ``path``. Raises `InputError` where the system refuses, a full disk among the reasons."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise InputError(f"{_named(what, path)} cannot be written: {reason(error)}; {give}") from None


def _named(what: str, path: str | Path) -> str:
    return f"{what} {shorten(str(path))}".lstrip()


def reason(error: Exception) -> str:
    """Why the system refused a file, in its words."""
    return getattr(error, "strerror", None) or "not a usable path"


def _without_waiting(path: str, flags: int) -> int:
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        if stat.S_ISFIFO(os.fstat(file).st_mode) and not _is_written(file):
            raise OSError(errno.EPIPE, "nobody writes into this pipe", path)
        if hasattr(os, "set_blocking"):
            os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def _is_written(pipe: int) -> bool:
    """Whether bytes or the end of a pipe are there, or somebody holds its other end."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if poll.poll(_WAIT_MS):
        return True
    try:
        os.read(pipe, 1)
    except BlockingIOError:
        return True
    return False
