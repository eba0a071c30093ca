"""YAML from outside, read within bounds: size, depth and what aliases expand to are checked before anything is built."""

from __future__ import annotations

from typing import Any

import yaml

from trilemma.errors import InputError, shorten

MOST_NODES = 50_000
MOST_DEPTH = 48

#: What PyYAML raises for text that it cannot read, and for a value that is not what its tag calls it (``!!timestamp x``,
#: ``!!bool x``, ``!!float ''``), which it looks up or takes apart unchecked.
_UNREADABLE = (
    yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError,
)  # fmt: skip
# The C parser is ten times faster where libyaml is there; both build plain data only.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_all(text: str, *, name: str) -> list[Any]:
    """All documents of a YAML stream as plain data; ``name`` is the file for messages. Raises `InputError`."""
    try:
        _check_events(text, name)
        return list(yaml.load_all(text, Loader=_Loader))
    except _UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{shorten(name)} is not readable YAML{where}; check its indentation and quotes") from error


def _check_events(text: str, name: str) -> None:
    """Counts the nodes that the text stands for, each alias as large as what it repeats: refuses alias bombs unbuilt."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor is None or event.anchor not in sizes:
                raise InputError(
                    f"{shorten(name)}: the alias *{shorten(str(event.anchor))} refers to itself or to nothing"
                )
            total += sizes[event.anchor]
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.DocumentStartEvent):
            sizes.clear()
        if total > MOST_NODES or len(open_nodes) > MOST_DEPTH:
            raise InputError(
                f"{shorten(name)} stands for more than {MOST_NODES:,} YAML nodes or nests deeper than {MOST_DEPTH}; "
                "give the engine's own short file"
            )
