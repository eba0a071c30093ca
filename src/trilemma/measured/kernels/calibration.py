"""``trilemma calibrate kernels``: from published tables to the data files of kernel coefficients, with held-out errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.hardware import find
from trilemma.measured.kernels.fit import FEWEST_ROWS, Fit, fit_kernel, held_out_ratio, predict
from trilemma.measured.kernels.models import model_of
from trilemma.measured.kernels.tables import KernelRows, KernelTables
from trilemma.quantities import Array
from trilemma.timing.kernels.fitted import kernel_formats, on_card
from trilemma.timing.kernels.formulas import COLLECTIVES, PARAMETERS
from trilemma.timing.kernels.ladder import (
    OTHER_ENGINE,
    OTHER_FORMAT,
    SAME_ARCHITECTURE,
    SPEC_SHEET,
)
from trilemma.timing.kernels.spec_sheet import spec_sheet_kernel

#: Bounds of the central 90 % of measured over predicted.
_LOW, _HIGH = 0.05, 0.95
#: Each group says as much as any other about a rung: so many of its rows, evenly drawn, are predicted with others' numbers.
_ROWS_A_GROUP = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelFits:
    """One group calibrated: its rows, its fits, and predicted over measured on shapes left out."""

    rows: KernelRows
    fits: Sequence[Fit]
    judged: KernelRows
    ratio: Array

    def held_out(self) -> dict[str, float]:
        """Errors on shapes left out: mean, median, and the factors between which 90 % of measured over predicted lie."""
        error = np.abs(self.ratio - 1)
        low, high = np.quantile(1 / self.ratio, (_LOW, _HIGH))
        return {
            "rows": len(self.ratio),
            "mape": round(float(error.mean()), 4),
            "median": round(float(np.median(error)), 4),
            "low": round(min(float(low), 1.0), 4),
            "high": round(max(float(high), 1.0), 4),
        }


def calibrate(tables: KernelTables, *, progress: Callable[[str], None]) -> list[KernelFits]:
    """Fit every group with enough rows; groups come back in the order of the tables."""
    found = []
    for rows in tables.groups:
        if len(rows.seconds) < FEWEST_ROWS:
            tables.left_out[f"groups of fewer than {FEWEST_ROWS} rows"] += len(rows.seconds)
            continue
        judged, ratio = held_out_ratio(rows)
        if not len(ratio):
            tables.left_out["groups with one shape only"] += len(rows.seconds)
            continue
        fitted = KernelFits(rows=rows, fits=fit_kernel(rows), judged=rows.part(judged), ratio=ratio)
        found.append(fitted)
        progress(f"{rows.name}: {len(rows.seconds):,} rows, {np.abs(ratio - 1).mean():.1%} on shapes left out")
    return _with_unquantised_floor(found)


def rung_spreads(found: Sequence[KernelFits]) -> dict[str, dict[str, list[float]]]:
    """Factors (5th and 95th percentile of measured over predicted) of every rung below the first, by kernel.

    Each group is predicted with what the rung would have given it, had it not been measured. A rung is never narrower than
    the one above it; a kernel without evidence for a rung keeps the rung above, else takes the widest of its own.
    """
    ratios: dict[tuple[str, str], list[Array]] = {}
    for fitted in found:
        for rung, predicted in _stand_ins(fitted, found):
            ratios.setdefault((rung, fitted.rows.kernel), []).append(predicted)
    spreads: dict[str, dict[str, list[float]]] = {}
    above: Mapping[str, list[float]] = {}
    for rung in (OTHER_ENGINE, SAME_ARCHITECTURE, OTHER_FORMAT, SPEC_SHEET):
        known = {k: _factors(ratios[rung, k]) for k in PARAMETERS if (rung, k) in ratios}
        bounds = [*known.values(), *above.values(), [1.0, 1.0]]
        widest = [min(low for low, _ in bounds), max(high for _, high in bounds)]
        spreads[rung] = {}
        for kernel in PARAMETERS:
            low, high = known.get(kernel, above.get(kernel, widest))
            floor, ceiling = above.get(kernel, (1.0, 1.0))
            spreads[rung][kernel] = [min(low, floor), max(high, ceiling)]
        above = spreads[rung]
    return spreads


def _factors(ratios: Sequence[Array]) -> list[float]:
    measured_over_predicted = 1 / np.concatenate(ratios)
    low, high = np.quantile(measured_over_predicted, (_LOW, _HIGH))
    return [round(min(float(low), 1.0), 3), round(max(float(high), 1.0), 3)]


def _stand_ins(fitted: KernelFits, found: Sequence[KernelFits]) -> Iterator[tuple[str, Array]]:
    rows = fitted.rows
    chosen = np.linspace(0, len(rows.seconds) - 1, min(_ROWS_A_GROUP, len(rows.seconds))).astype(int)
    sample = rows.part(np.unique(chosen))
    card = find(rows.accelerator)
    for other in found:
        if other is fitted or other.rows.kernel != rows.kernel:
            continue
        same_card = other.rows.accelerator == rows.accelerator
        same_dtype = other.rows.dtype == rows.dtype
        relative = find(other.rows.accelerator)
        alike = int(relative.compute_capability or 0) == int(card.compute_capability or -1)
        if rows.kernel in COLLECTIVES:
            alike &= (relative.link is None) == (card.link is None)
        if same_card and same_dtype and other.rows.engine != rows.engine:
            yield OTHER_ENGINE, _with(other, sample)
        elif not same_card and same_dtype and alike and other.rows.engine == rows.engine:
            yield SAME_ARCHITECTURE, _with(other, sample)
        elif same_card and other.rows.dtype in kernel_formats()[rows.dtype].stand_ins:
            yield OTHER_FORMAT, _with(other, sample)
    sheet = spec_sheet_kernel(card, rows.kernel, rows.dtype)
    yield SPEC_SHEET, np.asarray(model_of(rows.kernel).seconds(sheet, sample)) / sample.seconds


def _with(other: KernelFits, sample: KernelRows) -> Array:
    """``sample`` by the general fit of another group, on the card of the sample."""
    return predict([other.fits[0]], sample) / sample.seconds


def _with_unquantised_floor(found: list[KernelFits]) -> list[KernelFits]:
    """Add to quantised products the fixed time of the 16-bit one of the same engine: engines fuse what tables time apart."""
    from dataclasses import replace

    floors = {
        (f.rows.accelerator, f.rows.engine): f.fits[0].values["fixed_us"]
        for f in found
        if f.rows.kernel == "gemm" and f.rows.dtype == "bf16"
    }
    out = []
    for fitted in found:
        floor = floors.get((fitted.rows.accelerator, fitted.rows.engine))
        if fitted.rows.kernel == "gemm" and fitted.rows.dtype != "bf16" and floor is not None:
            fits = [replace(f, values={**f.values, "fused_fixed_us": floor}) for f in fitted.fits]
            fitted = replace(fitted, fits=fits)
        out.append(fitted)
    return out


def card_document(accelerator: str, found: Sequence[KernelFits], header: Mapping[str, Any]) -> dict[str, Any]:
    """The data file of one card: every fit with its kernel, engine, format, rows and held-out error."""
    card = find(accelerator)
    entries = []
    for fitted in found:
        if fitted.rows.accelerator != accelerator:
            continue
        on_card(card, kernel=fitted.rows.kernel, engine="", dtype=fitted.rows.dtype, values={})
        held_out = fitted.held_out()
        for fit in fitted.fits:
            part = {
                "source": fit.source,
                "head_dim": fit.head_dim,
                "windowed": fit.windowed,
            }
            entries.append(
                {
                    "kernel": fitted.rows.kernel,
                    "engine": fitted.rows.engine,
                    "version": fitted.rows.version,
                    "dtype": fitted.rows.dtype,
                    **{name: value for name, value in part.items() if value not in ("", None)},
                    "rows": fit.rows,
                    "held_out": held_out,
                    "values": {name: float(f"{value:.5g}") for name, value in fit.values.items()},
                }
            )
    datasheet = {
        "bandwidth_bytes_per_s": card.bandwidth_bytes_per_s.value,
        "peak_flops": {name: figure.value for name, figure in card.peak_flops.items()},
        "link_bytes_per_s": card.link.bytes_per_s.value if card.link is not None else None,
    }
    return {**header, "accelerator": accelerator, "datasheet": datasheet, "kernels": entries}


def ladder_document(found: Sequence[KernelFits], header: Mapping[str, Any]) -> dict[str, Any]:
    """The data file of the ladder: which cards were measured, and how wide each rung is."""
    cards = {}
    for accelerator in sorted({fitted.rows.accelerator for fitted in found}):
        card = find(accelerator)
        cards[accelerator] = {
            "compute_capability": card.compute_capability,
            "link": card.link.name if card.link is not None else "pcie",
            "bandwidth_bytes_per_s": card.bandwidth_bytes_per_s.value,
        }
    return {**header, "cards": cards, "spread": rung_spreads(found)}
