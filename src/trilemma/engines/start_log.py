"""What the log of one start says, whosever engine it is: figures with their lines, how the start ended, and why."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trilemma.engines.base import Stage

_MOST_TEXT = 200
Refusal = Literal["free_memory", "no_kv_memory", "context", "mamba_blocks", "out_of_memory", "configuration"]
#: Names of which the smallest value is the tightest rank's; of the others it is the largest.
SMALLEST = frozenset((
    "capacity_bytes", "free_bytes", "budget_bytes", "kv_cache_bytes", "kv_cache_tokens", "max_concurrency", "gpu_blocks",
    "gpu_blocks_profiled", "max_context_tokens", "oom_free_bytes", "oom_capacity_bytes",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One figure as printed: ``value`` in the unit that ends ``name``, the file line, its text, the worker that said it."""

    name: str
    value: float
    line_number: int
    text: str
    rank: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUpLog:
    """What one start says. ``measured`` holds the tightest rank's figure of each name, ``lines`` all of them.

    ``outcome`` is None when the log ends before start-up does, or when the engine refuses its configuration.
    ``arguments`` are the non-default arguments as the server logged them, ``config`` the engine's own configuration.
    ``refusal`` and ``reason`` say how and in which words the engine gave up; ``starts`` counts starts in the file, of
    which the last is read.
    """

    path: str
    version: str | None = None
    model: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)
    lines: tuple[Measured, ...] = ()
    outcome: Stage | None = None
    refusal: Refusal | None = None
    reason: Measured | None = None
    starts: int = 1


class StartReader(Protocol):
    """Gathers one start, line by line; a new server's first line begins anew."""

    def take(self, line: str, line_number: int) -> None:
        """The next line."""

    def result(self, path: str) -> StartUpLog:
        """What the lines said."""


def sentences(text: str) -> str:
    """The first sentences of ``text`` that are short enough to tell, none of them cut."""
    found = ""
    for sentence in re.split(r"(?<=[.!?])\s+", " ".join(text.split())):
        if found and len(found) + len(sentence) >= _MOST_TEXT:
            break
        found = f"{found} {sentence}".strip()
    return found if len(found) <= _MOST_TEXT else found[:_MOST_TEXT].rpartition(" ")[0] + " …"


def tightest(lines: Sequence[Measured]) -> dict[str, Measured]:
    """Of each name the figure of the tightest rank: the least of what is had, the most of what is taken."""
    found: dict[str, Measured] = {}
    for line in lines:
        before = found.get(line.name)
        smaller = line.name in SMALLEST
        if before is None or (line.value < before.value if smaller else line.value > before.value):
            found[line.name] = line
    return found


def literal_arguments(text: str) -> dict[str, Any]:
    """``{'a': 1}`` or ``Namespace(a=1)``: the entries that are plain literals, nothing evaluated."""
    text = text.strip()
    if not text.startswith(("{", "Namespace(", "ServerArgs(")):
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    pairs: list[tuple[Any, ast.expr]] = []
    if isinstance(tree, ast.Dict):
        pairs = [
            (key.value, value)
            for key, value in zip(tree.keys, tree.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
    elif isinstance(tree, ast.Call):
        pairs = [(keyword.arg, keyword.value) for keyword in tree.keywords]
    found: dict[str, Any] = {}
    for name, node in pairs:
        try:
            found[str(name)] = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
            continue
    return found
