"""The start-up of every engine: lines of the tightest pipeline stage, the pool that they leave, and both as an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trilemma.memory.ledger import Ledger, Line


def ledger_of(
    lines: Mapping[str, Any], half: Mapping[str, Any], *, formulas: Mapping[str, tuple[str, str]], outside: Iterable[str],
    inputs: Mapping[str, Any], out: Any,
) -> Ledger:  # fmt: skip
    """The lines with their bounds; ``formulas`` are (rule in words, source); lines of nothing are left out.

    ``out`` turns an array into what the caller asked for (`trilemma.engines.table.Plans.out`).
    """
    kept = ("weights", "kv_cache", "activations", "context")
    beyond = frozenset(outside)
    found = []
    for name, value in lines.items():
        if name not in kept and not np.any(np.asarray(value) > 0):
            continue
        width = half.get(name, np.zeros(np.shape(value)))
        formula, source = formulas.get(name, ("", ""))
        found.append(
            Line(
                name=name,
                bytes=out(value),
                low=out(np.maximum(value - width, 0)),
                high=out(value + width),
                budget="outside" if name in beyond else "inside",
                formula=formula,
                inputs=inputs,
                source=source,
            )
        )
    return Ledger(lines=tuple(found))
