"""Which output tile a library takes for a product: searched among all, or looked up by rows and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class TileRule:
    """How a library chooses tiles (rows, columns of the output).

    ``bands`` are gone through in order: the first whose ``(most rows, most columns)`` hold a product offers its tiles, of
    which the fastest counts. ``compute_capabilities`` and ``formats`` say where the rule exists; empty: anywhere.
    """

    bands: tuple[tuple[float, float, frozenset[tuple[int, int]]], ...]
    compute_capabilities: tuple[float, ...]
    formats: tuple[str, ...]

    @property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """Every tile of the rule, largest first."""
        return tuple(sorted(frozenset().union(*(tiles for _, _, tiles in self.bands)), reverse=True))

    def band(self, m: Numbers, n: Numbers) -> Any:
        """Number of the band of each product of ``m`` rows and ``n`` columns."""
        found: Any = len(self.bands) - 1
        for number, (rows, columns, _) in reversed(tuple(enumerate(self.bands))):
            found = np.where((np.asarray(m) <= rows) & (np.asarray(n) <= columns), number, found)
        return found

    def allows(self, rows: int, columns: int) -> Any:
        """(bands,) whether each band offers the tile."""
        return np.array([(rows, columns) in tiles for _, _, tiles in self.bands])

    def exists(self, compute_capability: float | None, dtype: str) -> bool:
        """Whether a card and a number format can have this rule."""
        return (not self.compute_capabilities or compute_capability in self.compute_capabilities) and (
            not self.formats or dtype in self.formats
        )


@cache
def tile_rules() -> Mapping[int, TileRule]:
    """The rules by number (``data/coefficients/gemm_tiles.toml``)."""
    return {row["number"]: _rule(row) for row in read_data("coefficients/gemm_tiles.toml")["rules"]}


def _rule(row: Mapping[str, Any]) -> TileRule:
    bands = tuple(
        (band.get("rows", np.inf), band.get("columns", np.inf), frozenset((a, b) for a, b in band["tiles"]))
        for band in row["bands"]
    )
    return TileRule(
        bands=bands,
        compute_capabilities=tuple(row.get("compute_capabilities", ())),
        formats=tuple(row.get("formats", ())),
    )
