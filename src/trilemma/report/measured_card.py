"""What was measured on this machine, for people and as ``trilemma/measurement@1``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trilemma.columns import column, document_of
from trilemma.data.digest import Made, made_by
from trilemma.hardware.accelerator import Accelerator
from trilemma.machine.nvml import CardState
from trilemma.measuring.card_file import compared
from trilemma.measuring.kernels import BenchFigure
from trilemma.measuring.suite import Measurement
from trilemma.quantities import GIB
from trilemma.report.tables import render_table


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFigure:
    """One bench: ``value`` in the unit that ends its name, from the median; ``low`` and ``high`` bound nine of ten repeats.
    ``catalogue`` is what the catalogue states of the same card."""

    figure: str
    shape: str
    value: float
    low: float
    high: float
    repeats: int
    catalogue: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasurementDocument:
    """``file`` is the accelerator file; ``card`` the id of the catalogue's card that this is, absent where it has none;
    ``cards`` the state of NVIDIA's cards right after the benches, where NVML tells it."""

    schema: str = "trilemma/measurement@1"
    made_by: Made = field(metadata=column(exact=True))
    device: str
    kind: str
    memory_bytes: float
    threads: int
    torch: str
    card: str | None = None
    figures: tuple[MeasuredFigure, ...] = field(metadata=column(keep="empty"))
    left_out: tuple[str, ...] = ()
    cards: tuple[CardState, ...] = ()
    file: str


def measured_document(found: Measurement, known: Accelerator | None, text: str) -> dict[str, Any]:
    told = compared(found, known)
    document = MeasurementDocument(
        made_by=made_by(), device=found.device.name, kind=found.device.kind, memory_bytes=found.device.memory_bytes,
        threads=found.device.threads, torch=str(found.device.torch.__version__), card=None if known is None else known.id,
        figures=tuple(_figure(one, told.get(one.figure)) for one in found.figures), left_out=found.left_out,
        cards=found.cards, file=text,
    )  # fmt: skip
    return document_of(document)


def _figure(one: BenchFigure, catalogue: float | None) -> MeasuredFigure:
    timing = one.timing
    slow, fast = one.value * timing.median_s / timing.high_s, one.value * timing.median_s / timing.low_s
    if one.figure.endswith("_s") and not one.figure.endswith("_per_s"):
        slow, fast = one.value * timing.low_s / timing.median_s, one.value * timing.high_s / timing.median_s
    return MeasuredFigure(
        figure=one.figure,
        shape=one.shape,
        value=one.value,
        low=slow,
        high=fast,
        repeats=timing.repeats,
        catalogue=catalogue,
    )


def render_measured(found: Measurement, known: Accelerator | None, *, width: int | None = None) -> str:
    device, told = found.device, compared(found, known)
    cores = "" if device.on_card else f", {device.threads} threads"
    what = f"the catalogue's {known.id}" if known is not None else "not in the catalogue: its own rates are kept"
    title = f"{device.name} ({device.kind}{cores}), {device.memory_bytes / GIB:.1f} GiB: {what}"
    headers = ["measured", "of", "median", "± spread", *(["catalogue", "share"] if told else [])]
    rows = []
    for one in found.figures:
        name, rate = _words(one.figure)
        row = [name, one.shape, rate(one.value), f"{one.timing.spread:.0%}"]
        if told:
            stated = told.get(one.figure)
            row += ["–", "–"] if stated is None else [rate(stated), f"{one.value / stated:.0%}"]
        rows.append(row)
    table = render_table(headers, rows, align="llrr" + "rr" * bool(told), width=width)
    rest = "".join(f"\n{card_words(one)}" for one in found.cards)
    rest += "".join(f"\n- left out: {why}" for why in found.left_out)
    note = "\nseconds are those that this process computed" if not device.on_card and device.threads == 1 else ""
    return f"{title}{note}\n\n{table}{rest}"


def _words(figure: str) -> tuple[str, Any]:
    """The figure's name without its unit, and how its values are shown."""
    if figure.endswith("_flops_per_s"):
        return figure.removesuffix("_flops_per_s").replace(
            "_", " "
        ), lambda value: f"{value / 1e12:,.1f} TFLOP/s" if value >= 1e13 else f"{value / 1e9:,.1f} GFLOP/s"
    if figure.endswith("_bytes_per_s"):
        return figure.removesuffix("_bytes_per_s").replace("_", " "), lambda value: f"{value / 1e9:,.2f} GB/s"
    return figure.removesuffix("_s").replace("_", " "), lambda value: f"{value * 1e6:,.1f} µs"


def card_words(one: CardState) -> str:
    """The state of a card in a line: clocks, power, heat, and what makes it no measure of its kind."""
    told = [f"card {one.card}"]
    if one.sm_mhz is not None:
        told.append(f"{one.sm_mhz:,} MHz" + ("" if one.sm_most_mhz is None else f" of {one.sm_most_mhz:,}"))
    if one.watts is not None:
        told.append(f"{one.watts:.0f} W" + ("" if one.watts_limit is None else f" of {one.watts_limit:.0f}"))
    if one.celsius is not None:
        told.append(f"{one.celsius} °C")
    if one.held_down_by:
        told.append(f"clocks held down by {', '.join(one.held_down_by)}")
    fault = f"\n- card {one.card} is not as its kind is: {', '.join(one.faults)}" if one.faults else ""
    return ", ".join(told) + fault
