"""Start-ups of single plans laid beside one another, for engines that decide by whole layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp


def beside(rows: list[StartUp]) -> StartUp:
    """Start-ups of single plans as one of a table: numbers become arrays (plans,)."""
    first = rows[0]

    def joined(values: list[Any]) -> Any:
        return np.asarray(values)

    names = [line.name for line in first.ledger]
    names += [name for name in {line.name for row in rows for line in row.ledger} if name not in names]
    lines = []
    for name in names:
        found = [row.ledger.get(name) for row in rows]
        shown = next(line for line in found if line is not None)
        figures = {
            part: joined([float(getattr(line, part)) if line is not None else 0.0 for line in found])
            for part in ("bytes", "low", "high")
        }
        lines.append(replace(shown, **figures))
    pool_fields = {name: joined([getattr(row.pool, name) for row in rows]) for name in KvPool.__dataclass_fields__}
    scalars = ("budget_bytes", "max_seqs", "max_batched_tokens", "load_peak_bytes", "spread_bytes", "host_bytes")
    warnings = tuple(dict.fromkeys(note for row in rows for note in row.warnings if note.code.startswith("assumed")))
    return replace(
        first,
        ledger=replace(first.ledger, lines=tuple(lines)),
        pool=KvPool(**pool_fields),
        warnings=warnings,
        on_host=None,
        **{name: joined([getattr(row, name) for row in rows]) for name in scalars},
    )
