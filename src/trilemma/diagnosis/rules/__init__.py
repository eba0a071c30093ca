"""Rules: one module each, found by listing this folder; a module offers ``RULE``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from trilemma.diagnosis.findings import Case, Finding, Missing


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """``needs``: kinds of records of which one must be there, else the rule is not asked."""

    needs: tuple[str, ...]
    judge: Callable[[Case], Iterator[Finding | Missing]]


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, in the order of the modules' names."""
    return tuple(import_module(f"{__name__}.{module.name}").RULE for module in iter_modules(__path__))
