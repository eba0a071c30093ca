"""Coefficients of memory by engine and version: rows of ``data/coefficients/serving_memory/``.

``common.toml`` holds for every engine, the file of an engine for it alone. A row states numbers of one table from its ``since``
on (always, without one); numbers that it leaves out stay as the rows before it have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

from trilemma.data.files import read_data
from trilemma.versions import Version, padded, parse_version

#: Table → the rows of it in order, as the files have them.
CoefficientRows: TypeAlias = Mapping[str, list[dict[str, Any]]]
#: Data file of an engine → rows (shaped as `shipped`) that take the place of those shipped: of refits.
ChangedRows: TypeAlias = Mapping[str, CoefficientRows]
#: Table → name → the number in force, the ``source`` of the newest row among them.
MemoryCoefficients: TypeAlias = Mapping[str, Mapping[str, Any]]

#: Keys of a row beside its numbers.
NOT_NUMBERS = ("since", "source", "as_of", "counted")
_FOLDER = "coefficients/serving_memory"


@cache
def shipped(file: str) -> CoefficientRows:
    """The rows of the engine whose data files are called ``file``, common ones first; not to be changed in place.

    Numbers that the engine's own rows state are left out of the common ones: no version has those.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    own: CoefficientRows = read_data(f"{_FOLDER}/{file}")
    for table, rows in read_data(f"{_FOLDER}/common.toml").items():
        stated = {name for row in own.get(table, ()) for name in row if name not in NOT_NUMBERS}
        found[table] = [{name: value for name, value in row.items() if name not in stated} for row in rows]
    for table, rows in own.items():
        found.setdefault(table, []).extend(rows)
    return found


@cache
def in_force(file: str, version: Version, *, engine: str) -> MemoryCoefficients:
    """The numbers that hold at ``version`` of ``engine``, whose data files are called ``file``."""
    return at(shipped(file), version, engine=engine)


def at(tables: CoefficientRows, version: Version, *, engine: str) -> MemoryCoefficients:
    """The numbers of rows shaped as `shipped` that hold at ``version``."""
    return {table: _merged(rows, version, engine) for table, rows in tables.items()}


def _merged(rows: list[dict[str, Any]], version: Version, engine: str) -> dict[str, Any]:
    """Rows out at ``version`` laid over one another; a number that only newer rows state has the oldest of these."""
    found: dict[str, Any] = {}
    later: dict[str, Any] = {}
    for row in rows:
        since = row.get("since")
        if since is None or padded(parse_version(since, engine=engine)) <= padded(version):
            found.update(row)
        else:
            later = {**row, **later}
    return {**later, **found}
