"""Kernel times straight from measured tables: the formula, corrected by the nearest measurements, where a package has them.

The package ``aiconfigurator-core`` (extra ``silicon``) ships tables of operator latencies as parquet files. They are read as
files; nothing of the package is imported or run. An operator without a table falls back to the formula and says so.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.kernels.columns import read_columns, table_rules
from trilemma.measured.kernels.models import blank, model_of
from trilemma.measured.kernels.tables import KernelRows, KernelTables, rows_of
from trilemma.quantities import Array
from trilemma.timing.kernels.fitted import KernelCoefficients
from trilemma.timing.kernels.formulas import COLLECTIVES
from trilemma.timing.kernels.ladder import Rung, kernel_coefficients, table_engine

PACKAGE = "aiconfigurator_core"
_NO_TABLES = "no measured tables are installed: pip install 'trilemma[silicon]'"
_NEIGHBOURS = 4
#: A measurement further away than this in shapes (octaves, all dimensions together) says nothing any more.
_REACH = 3.0
_CHUNK = 512
#: File of each kernel, below <data>/<gpu>/*/<engine>/<version>/.
_FILES = {
    "gemm": "gemm_perf.parquet",
    "decode_attention": "generation_attention_perf.parquet",
    "prefill_attention": "context_attention_perf.parquet",
    "mla_decode": "generation_mla_perf.parquet",
    "mla_prefill": "context_mla_perf.parquet",
    "experts": "moe_perf.parquet",
    **dict.fromkeys(COLLECTIVES, "nccl_perf.parquet"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredKernel:
    """A formula and what measurements say about it: ``log_ratio`` of measured over formula at ``points`` (octaves)."""

    coefficients: KernelCoefficients
    names: tuple[str, ...]
    points: Array
    log_ratio: Array
    source: str

    def seconds(self, rows: KernelRows) -> Array:
        """Seconds of the shapes of ``rows``: the formula times the mean ratio of the four nearest measurements.

        Weights fall with the distance in octaves; beyond three octaves the formula stands alone, so that an interpolation
        never runs further than its data.
        """
        formula = np.asarray(model_of(rows.kernel).seconds(self.coefficients, rows), dtype=float)
        asked = _octaves(rows.shapes, self.names)
        correction = [self._correction(asked[at : at + _CHUNK]) for at in range(0, len(asked), _CHUNK)]
        return formula * np.exp(np.concatenate(correction)) if correction else formula

    def _correction(self, asked: Array) -> Array:
        distance = np.sqrt(((asked[:, None, :] - self.points[None, :, :]) ** 2).sum(axis=2))
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :_NEIGHBOURS]
        away = np.take_along_axis(distance, nearest, axis=1)
        weight = 1 / (away + 1e-3) ** 2
        mean = (weight * self.log_ratio[nearest]).sum(axis=1) / weight.sum(axis=1)
        return np.asarray(mean * np.clip(1 - away[:, 0] / _REACH, 0.0, 1.0), dtype=float)


def measured_kernel(rows: KernelRows, coefficients: KernelCoefficients, source: str) -> MeasuredKernel:
    """A formula corrected by ``rows``."""
    names = tuple(name for name, values in sorted(rows.shapes.items()) if len(np.unique(values)) > 1)
    formula = np.asarray(model_of(rows.kernel).seconds(coefficients, rows), dtype=float)
    return MeasuredKernel(
        coefficients=coefficients,
        names=names,
        points=_octaves(rows.shapes, names),
        log_ratio=np.log(rows.seconds / formula),
        source=source,
    )


def silicon_kernel(
    accelerator: Accelerator, engine: str, kernel: str, dtype: str = "bf16", *, head_dim: int | None = None
) -> tuple[MeasuredKernel | None, Rung | str]:
    """``kernel`` from the tables of the installed package, else None and why the formula stands alone.

    The second value is the rung of the formula beneath, or the reason in words.
    """
    folder = _data_folder()
    if folder is None:
        return None, _NO_TABLES
    if kernel not in _FILES:
        return None, f"no measured table has {kernel}"
    found = _table(folder, accelerator.id, "nccl" if kernel in COLLECTIVES else table_engine(engine), _FILES[kernel])
    if found is None:
        return None, f"no measured table of {kernel} for {engine} on {accelerator.id}"
    for rows in found:
        if (rows.kernel, rows.dtype) == (kernel, dtype):
            if head_dim is not None and "head_dim" in rows.shapes:
                rows = rows.part(rows.shapes["head_dim"] == head_dim)
            if len(rows.seconds):
                formula, rung = kernel_coefficients(accelerator, engine, kernel, dtype, head_dim=head_dim)
                own = blank(rows, formula.values)
                return measured_kernel(rows, own, f"{rows.name}, {len(rows.seconds):,} rows"), rung
    return None, f"no measured table of {kernel} {dtype} for {engine} on {accelerator.id}"


def require_tables() -> None:
    """Raises `InputError` where the package with measured tables is not installed."""
    if _data_folder() is None:
        raise InputError(_NO_TABLES)


@cache
def _data_folder() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(next(iter(found.submodule_search_locations))) / "systems" / "data"
    return folder if folder.is_dir() else None


@cache
def _table(folder: Path, accelerator: str, engine: str, file: str) -> tuple[KernelRows, ...] | None:
    """The groups of the newest version's table; None where there is none."""
    gpu = next((name for name, card in table_rules()["accelerators"].items() if card == accelerator), None)
    paths = sorted(folder.glob(f"{gpu}/*/{engine}/*/{file}"), key=lambda path: _version(path.parent.name))
    if gpu is None or not paths:
        return None
    stated = {"gpu": gpu, "engine": engine, "engine_version": paths[-1].parent.name}
    columns = read_columns(paths[-1], stated=stated)
    return tuple(rows_of(columns, KernelTables()))


def _version(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key that puts 1.3.0rc20 after 1.3.0rc9: runs of digits as numbers."""
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in re.findall(r"\d+|[a-z]+", name))


def _octaves(shapes: Mapping[str, Any], names: tuple[str, ...]) -> Array:
    return np.stack([np.log2(1 + np.asarray(shapes[name], dtype=float)) for name in names], axis=1)
