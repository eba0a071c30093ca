"""Mutants of function bodies run in forks of one pytest session, which has collected every test already.

A slip inside a function is made by handing the function its mutated code. What a slip changes at import (constants, defaults,
functions that importing or collecting runs) is not seen that way: such mutants are left to imports of their own.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from mutants import Mutant, mutated

#: Waits for one child between two looks.
_LOOK_S = 0.005


def swaps(source: str, path: Path, mutant: Mutant) -> list[CodeType] | None:
    """The code of functions and methods that the slip changes; None where it changes what importing runs."""
    old = compile(ast.parse(source), str(path), "exec")
    new = compile(mutated(source, mutant), str(path), "exec")
    changed = list(_changed(old, new))
    return None if None in changed or not changed else [one for one in changed if one is not None]


def _changed(old: CodeType, new: CodeType) -> Iterator[CodeType | None]:
    """Functions that differ, down to those in classes; None for what modules and classes themselves run."""
    plain = [[one for one in code.co_consts if not isinstance(one, CodeType)] for code in (old, new)]
    if old.co_code != new.co_code or repr(plain[0]) != repr(plain[1]) or old.co_names != new.co_names:
        yield None
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    if len(inner[0]) != len(inner[1]):
        yield None
        return
    for before, after in zip(*inner, strict=True):
        if before == after:
            continue
        if before.co_flags & 0x2:  # CO_NEWLOCALS: a function; lambdas and comprehensions of a module run when it likes
            yield after if not before.co_name.startswith("<") else None
        else:
            yield from _changed(before, after)


Place = tuple[str, str, int]


def place(code: CodeType) -> Place:
    """By which code is found again: its file, its name and its line."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def functions(folder: Path) -> dict[Place, list[FunctionType]]:
    """Every live function of ``folder`` by its place: looked for once, since looking copies all memory of a fork."""
    found: dict[Place, list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(str(folder)):
            found.setdefault(place(one.__code__), []).append(one)
    return found


def forget() -> None:
    """Empties caches that collecting has filled."""
    for one in gc.get_objects():
        if type(one) is functools._lru_cache_wrapper:
            one.cache_clear()


class Warm:
    """A pytest plugin: once every test is collected, ``work`` asks for outcomes instead of a run."""

    def __init__(self, work: Callable[[Warm], None], modules: Iterable[str], folder: Path) -> None:
        self._work, self._modules, self._folder = work, modules, folder
        self._functions: dict[Place, list[FunctionType]] = {}
        self._failed = False
        self._items: dict[str, Any] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        self._items = {one.nodeid: one for one in session.items}
        for name in self._modules:  # collecting imports no engine that its tests look up by name
            importlib.import_module(name)
        forget()
        self._functions = functions(self._folder)
        gc.freeze()
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed = self._failed or report.failed

    def outcome(self, codes: Sequence[CodeType], tests: Sequence[str], limit_s: float) -> str:
        """``killed``, ``survived``, ``timeout``, or ``unclear`` where a function was not found."""
        if any(place(code) not in self._functions for code in codes):
            return "unclear"
        items = [self._items[one] for one in tests if one in self._items]
        child = os.fork()
        if child == 0:
            self._run(codes, items)
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return "killed" if os.waitstatus_to_exitcode(status) else "survived"
            time.sleep(_LOOK_S)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "timeout"

    def _run(self, codes: Sequence[CodeType], items: Sequence[Any]) -> None:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        for code in codes:
            for one in self._functions[place(code)]:
                one.__code__ = code
        try:
            items[0].config.pluginmanager.unregister(name="terminalreporter")
            for at, item in enumerate(items):
                following = items[at + 1] if at + 1 < len(items) else None
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed:
                    os._exit(1)
        except BaseException:
            os._exit(1)
        os._exit(0)
