"""Readers: one module a kind of record, found by listing this folder.

A module offers ``READER``. Of the form "lines" its gatherer gets the lines that hold one of ``marks`` (every line while it is
``greedy``); of the form "items" the items of a JSON document or a pickle; of the form "xml" the root
element; of the form "value" the text of a file that holds nothing else, and the name of that file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, Protocol

from trilemma.diagnosis.findings import Case, Part

Form = Literal["lines", "items", "xml", "value"]


class Gatherer(Protocol):
    """Takes the records of one file, one after the other, and keeps a bounded amount of them."""

    def take(self, record: Any, where: Any) -> None:
        """A line (text) and its number; an item and its key; an element and its tag."""

    def part(self) -> Part | None:
        """What was found; None where no record was of this kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """``own``: marks whose lines are nobody else's, so that a flood of them is read fast.

    ``together`` gives facts, by file, that several files say only side by side (the ranks of one job).
    """

    kind: str
    form: Form
    begin: Callable[[], Gatherer]
    marks: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    together: Callable[[Case], Mapping[str, Mapping[str, Any]]] | None = None


@cache
def every_reader() -> tuple[Reader, ...]:
    """All of them, in the order of the modules' names."""
    return tuple(import_module(f"{__name__}.{module.name}").READER for module in iter_modules(__path__))


@cache
def readers(form: Form) -> tuple[Reader, ...]:
    """Those of one form."""
    return tuple(one for one in every_reader() if one.form == form)
