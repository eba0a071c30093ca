"""Published kernel tables as shapes and seconds, one group per card, engine, kernel and number format.

Tables come from outside: sizes are bounded, columns are checked, and rows that no card can have produced are left out and
counted with the reason.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.hardware import find
from trilemma.measured.kernels.columns import Columns, read_columns, table_rules
from trilemma.measured.kernels.operators import NOT_FITTED, OPERATORS
from trilemma.quantities import Array
from trilemma.timing.kernels.fitted import kernel_formats


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRows:
    """Measurements of one kernel: ``shapes`` by the names of the formula's arguments, ``seconds`` beside them.

    ``sources`` names the implementation behind each row, as the table writes it: one engine has several. ``at`` is the place
    of each row in its table.
    """

    kernel: str
    accelerator: str
    engine: str
    version: str
    dtype: str
    shapes: Mapping[str, Array]
    seconds: Array
    sources: Any
    at: Any

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.dtype} of {self.engine} {self.version} on {self.accelerator}"

    def part(self, chosen: Any) -> KernelRows:
        """The rows under the mask or indices ``chosen``."""
        return replace(
            self,
            shapes={name: values[chosen] for name, values in self.shapes.items()},
            seconds=self.seconds[chosen],
            sources=self.sources[chosen],
            at=self.at[chosen],
        )


@dataclass(slots=True)
class KernelTables:
    """What a set of files holds: groups in a fixed order, rows read, and why rows were left out (reason → rows)."""

    groups: list[KernelRows] = field(default_factory=list)
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    left_out_at: dict[int, str] = field(default_factory=dict)

    def leave_out(self, reason: str, at: Any) -> None:
        """Count the rows at the places ``at`` as left out; the first reason of a row is kept."""
        self.left_out[reason] += len(at)
        for place in at.tolist():
            self.left_out_at.setdefault(place, reason)


def read_kernel_tables(paths: Iterable[str | Path]) -> KernelTables:
    """Read parquet tables of kernel latencies, in the order given.

    Raises `InputError` for a file that is missing, too large, no parquet, or without the columns of its operator.
    """
    tables = KernelTables()
    found: dict[tuple[str, str, str, str, str], list[KernelRows]] = {}
    for path in paths:
        for rows in rows_of(read_columns(Path(path)), tables):
            key = (rows.kernel, rows.accelerator, rows.engine, rows.version, rows.dtype)
            found.setdefault(key, []).append(rows)
    for key in sorted(found):
        tables.groups.append(_one_row_a_shape(_joined(found[key])))
    return tables


def rows_of(columns: Columns, tables: KernelTables) -> list[KernelRows]:
    """The groups of one table; what is left out is counted in ``tables``."""
    tables.rows += columns.rows
    ops = _ops(columns)
    found: list[KernelRows] = []
    for op in sorted(set(ops.tolist())):
        if op not in OPERATORS:
            reason = NOT_FITTED.get(op, f"operator {shorten(op)!r} has no formula here")
            tables.leave_out(reason, np.flatnonzero(ops == op))
            continue
        kept = ops == op
        for rule in table_rules()["left_out"]:
            hit = kept & _matches(rule, op, columns)
            if hit.any():
                named = " ".join(str(rule[key]) for key in ("op", "gpu", "engine", "dtype", "backend") if key in rule)
                tables.leave_out(f"{named}: {rule['why']}", np.flatnonzero(hit))
                kept &= ~hit
        found += _grouped(op, columns, kept, tables)
    return [believed for rows in found if len((believed := _believed(rows, tables)).seconds)]


def _ops(columns: Columns) -> Any:
    if "op_name" not in columns.texts and "op" not in columns.texts:
        raise InputError(f"{columns.name}: the column 'op_name' is missing; it says which kernel a row times")
    return columns.text("op_name")


def _matches(rule: Mapping[str, Any], op: str, columns: Columns) -> Any:
    hit = np.full(columns.rows, True)
    if "op" in rule:
        hit &= rule["op"] in (op, OPERATORS[op].family)
    for key, column in (("gpu", "gpu"), ("engine", "engine"), ("version", "engine_version"), ("backend", "backend")):
        if key in rule:
            hit &= columns.text(column) == rule[key]
    if "dtype" in rule:
        hit &= columns.text(OPERATORS[op].dtype_column) == rule["dtype"]
    return hit


def _grouped(op: str, columns: Columns, kept: Any, tables: KernelTables) -> list[KernelRows]:
    operator = OPERATORS[op]
    kernels, dtypes, shapes = operator.read(columns, op)
    gpus, engines = columns.text("gpu"), columns.text("engine")
    versions = columns.text("engine_version")
    seconds, sources = columns.seconds(), columns.text("kernel_source")
    labels = np.stack([kernels, dtypes, gpus, engines, versions])
    found = []
    for key in sorted({tuple(labels[:, at].tolist()) for at in np.flatnonzero(kept)}):
        mine = kept & (labels == np.array(key)[:, None]).all(axis=0)
        kernel, dtype, gpu, engine, version = key
        card = _card(gpu)
        if kernel == "" or dtype not in kernel_formats() or card is None:
            what = f"GPU {shorten(gpu)!r}" if card is None else f"format {shorten(dtype)!r} of {op}"
            tables.leave_out(f"{what} is not known", np.flatnonzero(mine))
            continue
        found.append(
            KernelRows(
                kernel=kernel, accelerator=card, engine=engine, version=version, dtype=dtype,
                shapes={name: values[mine] for name, values in shapes.items()}, seconds=seconds[mine],
                sources=sources[mine], at=np.flatnonzero(mine),
            )
        )  # fmt: skip
    return found


@cache
def _card(name: str) -> str | None:
    """The id of the accelerator that a table calls ``name``; None where nobody is called so."""
    known = table_rules()["accelerators"].get(name)
    if known is not None:
        return str(known)
    try:
        return find(name).id
    except InputError:
        return None


def _joined(parts: Sequence[KernelRows]) -> KernelRows:
    return replace(
        parts[0],
        shapes={name: np.concatenate([part.shapes[name] for part in parts]) for name in parts[0].shapes},
        seconds=np.concatenate([part.seconds for part in parts]),
        sources=np.concatenate([part.sources for part in parts]),
        at=np.concatenate([part.at for part in parts]),
    )


def _believed(rows: KernelRows, tables: KernelTables) -> KernelRows:
    """Without rows that are no numbers, no times, or faster than the card can be."""
    from trilemma.measured.kernels.models import model_of

    rules = table_rules()["physics"]
    sane = np.isfinite(rows.seconds) & (rows.seconds >= rules["least_s"])
    for values in rows.shapes.values():
        sane &= np.isfinite(values) & (values >= 0)
    tables.leave_out("not a positive, finite latency and shape", rows.at[~sane])
    rows = rows.part(sane)
    if not len(rows.seconds):
        return rows
    work = model_of(rows.kernel).least_work(rows)
    card = find(rows.accelerator)
    l2 = card.facts["l2_bytes"].value if "l2_bytes" in card.facts else 0.0
    too_fast = (work.n_bytes > rules["beyond_l2"] * l2) & (
        work.n_bytes / rows.seconds > rules["most_bandwidth"] * work.bytes_per_s
    )
    too_fast |= work.flops / rows.seconds > rules["most_compute"] * work.flops_per_s
    tables.leave_out("faster than the bandwidth or the peak of the card", rows.at[too_fast])
    return rows.part(~too_fast)


def _one_row_a_shape(rows: KernelRows) -> KernelRows:
    """Repeated shapes of one implementation (repeated runs) as their median."""
    names, codes = np.unique(rows.sources, return_inverse=True)
    table = np.stack([*rows.shapes.values(), np.asarray(codes, dtype=float).reshape(-1)], axis=1)
    unique, at = np.unique(table, axis=0, return_inverse=True)
    at = np.asarray(at).reshape(-1)
    order = np.lexsort((rows.seconds, at))
    starts = np.searchsorted(at[order], np.arange(len(unique) + 1))
    medians = np.array([np.median(rows.seconds[order[a:b]]) for a, b in itertools.pairwise(starts)])
    return replace(
        rows,
        shapes={name: unique[:, column] for column, name in enumerate(rows.shapes)},
        seconds=medians,
        sources=names[unique[:, -1].astype(int)],
        at=rows.at[order[starts[:-1]]],
    )
