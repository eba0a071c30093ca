"""While the question of somebody far away is answered no file of the machine is read and no network is reached.

The questions of the command line take paths and hub ids; over the network these would read whatever the server may read. So
the interpreter itself is asked (PEP 578, audit events): inside `fenced` an ``open`` outside the package and Python's own
folders (and those named), a listing of such a folder, a connection or a new process fails as if it were not there.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

_inside: ContextVar[tuple[str, ...]] = ContextVar("fenced", default=())
#: Events whose first argument is a path.
_PATHS = frozenset({"open", "os.listdir", "os.scandir", "glob.glob", "pathlib.Path.glob"})
#: Events that reach beyond the process.
_BEYOND = (
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
)
_WRITING = os.O_WRONLY | os.O_RDWR


@cache
def _install() -> None:
    sys.addaudithook(_audit)


@contextmanager
def fenced(*folders: str | Path) -> Iterator[None]:
    """No file outside ``folders``, network or process beyond what the package itself needs, for what runs inside."""
    named = tuple(os.path.realpath(one).rstrip(os.sep) + os.sep for one in folders)
    roots = (*_roots(), *named)
    _install()
    token = _inside.set(roots)
    try:
        yield
    finally:
        _inside.reset(token)


@cache
def _roots() -> tuple[str, ...]:
    """Folders that hold code and data of ours and of Python."""
    own = Path(__file__).resolve().parents[1]
    named = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found = {str(own), *(str(Path(one).resolve()) for one in named), *map(str, named)}
    return tuple(one.rstrip(os.sep) + os.sep for one in sorted(found))


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    roots = _inside.get()
    if not roots:
        return
    if event in _BEYOND:
        raise PermissionError(f"{event}: nothing beyond this server is asked for others")
    if event not in _PATHS or not arguments:
        return
    path = arguments[0]
    if isinstance(path, int) or path is None:  # a file that is open already
        return
    text = os.path.realpath(os.fsdecode(path))
    writes = event == "open" and len(arguments) > 2 and isinstance(arguments[2], int) and bool(arguments[2] & _WRITING)
    if text == os.devnull or (f"{text}{os.sep}".startswith(roots) and not writes):
        return
    raise FileNotFoundError(2, "no file of this machine is read for others", text)
