"""On which cards a manifest's pods ask to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trilemma.data.files import read_data


def cards_named(manifest: Any) -> tuple[str, ...]:
    """The cards that pods of ``manifest`` ask for by label: of ``nodeSelector``, or any of those a node affinity takes."""
    labels = frozenset(read_data("pod_labels.toml")["labels"])
    found: dict[str, None] = {}
    for node in _mappings(manifest):
        for key, value in node.items():
            if key in labels and isinstance(value, str):
                found[value] = None
        label, values = node.get("key"), node.get("values")
        if isinstance(label, str) and label in labels and node.get("operator") == "In" and isinstance(values, list):
            found |= dict.fromkeys(str(one)[:200] for one in values[:20])
    return tuple(found)


def _mappings(node: Any) -> Iterator[Mapping[str, Any]]:
    pending = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            yield one
            pending += one.values()
        elif isinstance(one, list):
            pending += one
