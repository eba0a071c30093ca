"""Published kernel tables (parquet) as shapes and seconds, one group per card, engine, kernel and number format.

Tables come from outside: sizes are bounded, columns are checked, and rows that no card can have produced are left out and
counted with the reason. Reading needs pyarrow (extra ``calibrate``); nothing else of the package does.
"""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.hardware import find
from trilemma.quantities import Array
from trilemma.timing.kernels.fitted import kernel_formats

MOST_BYTES = 256 * 2**20
MOST_ROWS = 2 * 10**6


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


@dataclass(slots=True)
class Columns:
    """One file's columns by name, as text or numbers, with the rows that are still believed."""

    name: str
    texts: dict[str, Any]
    numbers: dict[str, Array]
    rows: int

    def text(self, column: str) -> Any:
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


@cache
def table_rules() -> Mapping[str, Any]:
    """Names, physics and the tables that are not believed (``data/coefficients/kernel_tables.toml``)."""
    text = resources.files("trilemma.data").joinpath("coefficients/kernel_tables.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def rows_of(columns: Columns, tables: KernelTables) -> list[KernelRows]:
    """The groups of one table; what is left out is counted in ``tables``."""
    tables.rows += columns.rows
    ops = _ops(columns)
    found: list[KernelRows] = []
    for op in sorted(set(ops.tolist())):
        if op not in _OPERATORS:
            reason = _NOT_FITTED.get(op, f"operator {shorten(op)!r} has no formula here")
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


def read_columns(path: Path) -> Columns:
    """One parquet file. Raises `InputError` for one that is missing, too large, no parquet or without its columns."""
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
    columns = Columns(name=shown, texts=texts, numbers=numbers, rows=table.num_rows)
    for needed in ("gpu", "engine"):
        if needed not in texts:
            raise InputError(
                f"{shown}: the column {needed!r} is missing; kernel tables name card, engine and latency (ms)"
            )
    columns.seconds()
    return columns


def _ops(columns: Columns) -> Any:
    if "op_name" not in columns.texts:
        raise InputError(f"{columns.name}: the column 'op_name' is missing; it says which kernel a row times")
    return columns.text("op_name")


def _matches(rule: Mapping[str, Any], op: str, columns: Columns) -> Any:
    hit = np.full(columns.rows, True)
    if "op" in rule:
        hit &= rule["op"] in (op, _OPERATORS[op].family)
    for key, column in (("gpu", "gpu"), ("engine", "engine"), ("version", "engine_version"), ("backend", "backend")):
        if key in rule:
            hit &= columns.text(column) == rule[key]
    if "dtype" in rule:
        hit &= columns.text(_OPERATORS[op].dtype_column) == rule["dtype"]
    return hit


def _grouped(op: str, columns: Columns, kept: Any, tables: KernelTables) -> list[KernelRows]:
    operator = _OPERATORS[op]
    kernels, dtypes, shapes = operator.read(columns, op)
    gpus, engines = columns.text("gpu"), columns.text("engine")
    versions = columns.text("engine_version")
    seconds, sources = columns.seconds(), columns.text("kernel_source")
    labels = np.stack([kernels, dtypes, gpus, engines, versions])
    found = []
    for key in sorted({tuple(labels[:, at].tolist()) for at in np.flatnonzero(kept)}):
        mine = kept & (labels == np.array(key)[:, None]).all(axis=0)
        kernel, dtype, gpu, engine, version = key
        card = table_rules()["accelerators"].get(gpu)
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
    from trilemma.calibrate.kernel_models import model_of

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


Read = Callable[[Columns, str], tuple[Any, Any, dict[str, Array]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Operator:
    """How rows of one operator are read: the kernel and format of each row, and its shapes by argument name."""

    read: Read
    dtype_column: str = ""
    family: str = ""


def _formats(columns: Columns, column: str) -> Any:
    names = table_rules()["formats"]
    texts = columns.text(column)
    return np.array([names.get(text, text) for text in texts.tolist()], dtype=object).astype(str)


def _all(columns: Columns, kernel: str) -> Any:
    return np.full(columns.rows, kernel)


def _gemm(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "gemm"), _formats(columns, "gemm_dtype"), {name: columns.number(name) for name in "mnk"}


def _decode(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "decode_attention"), _cache_formats(columns, ""), {
        "batch": columns.number("batch_size"),
        "context": columns.number("isl") + columns.number("step"),
        **_heads(columns),
        "window": columns.number("window_size", 0.0),
    }  # fmt: skip


def _prefill(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "prefill_attention"), _cache_formats(columns, "attn_dtype"), {
        "batch": columns.number("batch_size"),
        "tokens": columns.number("isl"),
        **_heads(columns),
        "cached": columns.number("step"),
        "window": columns.number("window_size", 0.0),
    }  # fmt: skip


def _heads(columns: Columns) -> dict[str, Array]:
    heads, kv_heads = columns.number("num_heads"), columns.number("num_key_value_heads")
    return {
        "heads": heads,
        "kv_heads": np.where(kv_heads == 0, heads, kv_heads),  # tables write 0 for as many as query heads
        "head_dim": columns.number("head_dim"),
    }


def _cache_formats(columns: Columns, computed: str) -> Any:
    """``bf16`` or ``bf16_kv8`` by how the cache is stored; ``fp8`` where scores are multiplied in FP8 too."""
    stored = np.where(_formats(columns, "kv_cache_dtype") == "fp8", "bf16_kv8", "bf16")
    return np.where(_formats(columns, computed) == "fp8", "fp8", stored) if computed else stored


def _mla_decode(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "mla_decode"), _cache_formats(columns, ""), {
        "batch": columns.number("batch_size"),
        "context": columns.number("isl") + columns.number("step"),
        "heads": columns.number("num_heads"),
    }  # fmt: skip


def _mla_prefill(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    return _all(columns, "mla_prefill"), _cache_formats(columns, "mla_dtype"), {
        "batch": columns.number("batch_size"),
        "tokens": columns.number("isl"),
        "heads": columns.number("num_heads"),
        "cached": columns.number("step"),
    }  # fmt: skip


def _experts(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    skews = {"balanced": 0.0, "uniform": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
    plain = np.array(["nongated" in name for name in columns.text("kernel_source").tolist()])
    return _all(columns, "experts"), _formats(columns, "moe_dtype"), {
        "tokens": columns.number("num_tokens"),
        "hidden": columns.number("hidden_size"),
        "inter": columns.number("inter_size"),
        "top_k": columns.number("topk"),
        "experts": columns.number("num_experts"),
        "tp": columns.number("moe_tp_size"),
        "ep": columns.number("moe_ep_size"),
        "skew": np.array([skews.get(name, np.nan) for name in columns.text("distribution").tolist()]),
        "matrices": np.where(plain, 2.0, 3.0),
    }  # fmt: skip


def _state(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    sources = columns.text("kernel_source").tolist()
    decodes = (columns.text("phase") == "generation").tolist()
    kernels = np.array(
        [
            "convolution" if "conv1d" in source else "state_decode" if decode else "state_prefill"
            for source, decode in zip(sources, decodes, strict=True)
        ]
    )
    heads, key_dim = columns.number("num_k_heads"), columns.number("head_k_dim")
    value_heads, value_dim = columns.number("num_v_heads"), columns.number("head_v_dim")
    return kernels, _all(columns, "bf16"), {
        "batch": columns.number("batch_size"),
        "tokens": np.where(np.array(decodes), 1.0, columns.number("seq_len")),
        "heads": value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "channels": 2 * heads * key_dim + value_heads * value_dim,
    }  # fmt: skip


def _mamba(columns: Columns, _: str) -> tuple[Any, Any, dict[str, Array]]:
    """Only the convolution is timed; its channels are those of x, B and C (Dao and Gu 2024, figure 6)."""
    inner = columns.number("nheads") * columns.number("head_dim")
    decodes = columns.text("phase") == "generation"
    return _all(columns, "convolution"), _all(columns, "bf16"), {
        "batch": columns.number("batch_size"),
        "tokens": np.where(decodes, 1.0, columns.number("seq_len")),
        "heads": columns.number("nheads"),
        "key_dim": columns.number("d_state"),
        "value_dim": columns.number("head_dim"),
        "channels": inner + 2 * columns.number("n_groups") * columns.number("d_state"),
    }  # fmt: skip


def _collective(columns: Columns, op: str) -> tuple[Any, Any, dict[str, Array]]:
    column = "nccl_dtype" if "nccl_dtype" in columns.texts else "allreduce_dtype"
    element = np.where(columns.text(column) == "int8", 1.0, 2.0)
    kernel = {"alltoall": "all_to_all"}.get(op, op)
    return _all(columns, kernel), _all(columns, "bf16"), {
        "n_bytes": columns.number("message_size") * element,  # tables count elements
        "ranks": columns.number("num_gpus"),
    }  # fmt: skip


_OPERATORS: Mapping[str, _Operator] = {
    "gemm": _Operator(read=_gemm, dtype_column="gemm_dtype"),
    "generation_attention": _Operator(read=_decode, dtype_column="kv_cache_dtype"),
    "context_attention": _Operator(read=_prefill, dtype_column="attn_dtype"),
    **dict.fromkeys(("mla_generation", "generation_mla"), _Operator(read=_mla_decode, dtype_column="kv_cache_dtype")),
    **dict.fromkeys(("mla_context", "context_mla"), _Operator(read=_mla_prefill, dtype_column="mla_dtype")),
    "moe": _Operator(read=_experts, dtype_column="moe_dtype"),
    "gdn": _Operator(read=_state),
    "mamba2": _Operator(read=_mamba),
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "alltoall"), _Operator(read=_collective, family="collective")
    ),
}
_NOT_FITTED = {
    "mla_context_module": "latent attention with its projections in one figure: not one kernel",
    "mla_generation_module": "latent attention with its projections in one figure: not one kernel",
}
