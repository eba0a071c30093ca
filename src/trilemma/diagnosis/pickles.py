"""Pickles of plain values, read by a machine that knows no opcode that names, calls or builds an object.

What Python's own unpickler would run, or set aside memory for before it sees the bytes, is not in it. Keys are plain values:
the hash of nested tuples that share their parts takes exponential time.
"""

from __future__ import annotations

import pickletools
from typing import Any

from trilemma.diagnosis.sources import Unreadable
from trilemma.errors import shorten

_VALUES = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT",
))  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_IGNORED = frozenset(("PROTO", "FRAME"))
_MARK = object()


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """One opcode by its name in `pickletools`."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _MAKERS:
            stack.append(_MAKERS[name]())
        else:
            self._gather(name)

    def _gather(self, name: str) -> None:
        stack = self.stack
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(name[-1])
            stack[-size:] = [tuple(stack[-size:])]
        elif name in ("TUPLE", "LIST", "DICT"):
            inside = self._since_mark()
            stack.append(tuple(inside) if name == "TUPLE" else inside if name == "LIST" else _pairs(inside))
        elif name in ("APPEND", "APPENDS"):
            inside = [stack.pop()] if name == "APPEND" else self._since_mark()
            _expect(stack[-1], list).extend(inside)
        elif name in ("SETITEM", "SETITEMS"):
            if name == "SETITEM":
                inside = stack[-2:]
                del stack[-2:]
            else:
                inside = self._since_mark()
            _expect(stack[-1], dict).update(_pairs(inside))
        elif name in ("POP", "POP_MARK"):
            if name == "POP":
                stack.pop()
            else:
                self._since_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            raise Unreadable(
                f"a pickle that names or calls objects ({name}); only plain values are read, nothing is run"
            )

    def _since_mark(self) -> list[Any]:
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        inside = stack[at + 1 :]
        del stack[at:]
        return inside


_MAKERS: dict[str, Any] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    keys = flat[::2]
    if len(flat) % 2 or not all(isinstance(key, str | int | float | bytes | None) for key in keys):
        raise TypeError("a key that is no plain value")
    return dict(zip(keys, flat[1::2], strict=True))


def plain_pickle(whole: bytes) -> Any:
    """The value pickled in ``whole``; raises `Unreadable` for one that holds more than plain values."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(whole):
            if opcode.name == "STOP":
                return machine.stack.pop()
            if opcode.name not in _IGNORED:
                machine.step(opcode.name, argument)
    except (ValueError, TypeError, LookupError, OverflowError, MemoryError, RecursionError) as error:
        raise Unreadable(f"a damaged pickle: {shorten(str(error)) or type(error).__name__}") from None
    raise Unreadable("a pickle that breaks off")
