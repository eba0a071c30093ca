"""One kernel table as columns: bounded reading of parquet, and the rules by which tables are read and not believed.

Reading needs pyarrow (extra ``calibrate``); nothing else of the package does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.quantities import Array

MOST_BYTES = 256 * 2**20
MOST_ROWS = 2 * 10**6


#: What our own tables (gpu, engine, version, op, dtype, shapes, latency_us) call columns of the published ones.
_OWN_NAMES = {
    "op_name": "op",
    "engine_version": "version",
    "kernel_source": "source",
    **dict.fromkeys(("gemm_dtype", "moe_dtype", "kv_cache_dtype", "mla_dtype", "nccl_dtype", "attn_dtype"), "dtype"),
}


@dataclass(slots=True)
class Columns:
    """One file's columns by name, as text or numbers, with the rows that are still believed."""

    name: str
    texts: dict[str, Any]
    numbers: dict[str, Array]
    rows: int

    def text(self, column: str) -> Any:
        column = column if column in self.texts else _OWN_NAMES.get(column, column)
        return self.texts[column] if column in self.texts else np.full(self.rows, "")

    def number(self, column: str, default: float | None = None) -> Array:
        if column in self.numbers:
            values = self.numbers[column]
            return np.where(np.isnan(values), default, values) if default is not None else values
        if default is None:
            raise InputError(f"{self.name}: the column {column!r} is missing or holds no numbers")
        return np.full(self.rows, float(default))

    def seconds(self) -> Array:
        """Tables of the field print milliseconds in ``latency``, our own microseconds in ``latency_us``."""
        return self.number("latency_us") * 1e-6 if "latency_us" in self.numbers else self.number("latency") * 1e-3


@cache
def table_rules() -> Mapping[str, Any]:
    """Names, physics and the tables that are not believed (``data/coefficients/kernel_tables.toml``)."""
    return read_data("coefficients/kernel_tables.toml")


def read_columns(path: Path, *, stated: Mapping[str, str] | None = None) -> Columns:
    """One parquet file; ``stated`` columns hold one text in every row, known from elsewhere (the folder of the file).

    Raises `InputError` for a file that is missing, too large, no parquet or without its columns.
    """
    shown = shorten(str(path))
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("reading kernel tables needs pyarrow: pip install 'trilemma[calibrate]'") from None
    if not path.is_file():
        raise InputError(f"{shown}: no such file; give a parquet table of kernel latencies")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{shown}: larger than {MOST_BYTES >> 20} MiB; split the table")
    try:
        rows = pq.read_metadata(path).num_rows
        if rows > MOST_ROWS:
            raise InputError(f"{shown}: {rows:,} rows; at most {MOST_ROWS:,} are read")
        table = pq.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{shown}: cannot be read as parquet: {shorten(str(error), most=120)}") from None
    texts, numbers = {}, {}
    for name in table.column_names:
        kind = table.schema.field(name).type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers[name] = np.asarray(
                table.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=float
            )
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts[name] = np.array([value or "" for value in table.column(name).to_pylist()])
    texts |= {name: np.full(table.num_rows, text) for name, text in (stated or {}).items()}
    columns = Columns(name=shown, texts=texts, numbers=numbers, rows=table.num_rows)
    for needed in ("gpu", "engine"):
        if needed not in texts:
            raise InputError(
                f"{shown}: the column {needed!r} is missing; kernel tables name card, engine and latency (ms)"
            )
    columns.seconds()
    return columns
