"""The accelerator catalogue for people: a table of all, one in full, and where each figure comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from trilemma.hardware.accelerator import Accelerator, Figure
from trilemma.hardware.memory import runtime_total
from trilemma.quantities import GIB, MIB
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped

#: Columns of the catalogue that give way where the window is narrow, the first first.
_YIELDS = ("fp4", "TDP W", "link GB/s", "$/h")
#: group of figures → how its values are shown: divisor, unit, digits after the point at most.
_UNITS = {
    "flops": (1e12, "TFLOP/s"),
    "bytes_per_s": (1e9, "GB/s"),
    "bytes": (GIB, "GiB"),
    "w": (1.0, "W"),
    "usd": (1.0, "$/h"),
    "hz": (1e6, "MHz"),
    "count": (1.0, ""),
}


def render_catalogue(accelerators: Sequence[Accelerator], *, width: int | None = None) -> str:
    """One line per accelerator, grouped by vendor. ``~`` marks an inferred memory total, ``*`` a recalled bandwidth."""
    headers = ["accelerator", "GiB", "TB/s", "bf16", "fp8", "fp4", "link GB/s", "TDP W", "$/h"]
    parts = []
    for vendor in sorted({one.vendor for one in accelerators}, key=lambda name: (name != "NVIDIA", name)):
        rows = [_summary(one) for one in accelerators if one.vendor == vendor]
        parts.append(
            f"{vendor}\n"
            + render_table(headers, rows, align="lrrrrrrrr", width=width, whole=headers[:1], yields=_YIELDS)
        )
    notes = (
        "GiB: what the runtime reports (~ inferred). bf16, fp8, fp4: dense TFLOP/s in hardware. link: one way, all links"
        " of one accelerator. $/h: range of list prices, on demand. * from memory of a datasheet, not looked up again."
    )
    return "\n\n".join([*parts, textwrap.fill(notes, width=min(width or 100, 100))])


def render_accelerator(accelerator: Accelerator, *, explain: bool = False, width: int = 100) -> str:
    """All figures of one accelerator; with ``explain`` the source, date and rival claims of each."""
    lines = [f"{accelerator.name} ({accelerator.id})", "", *_traits(accelerator, width), ""]
    entries = list(figures(accelerator))
    if explain:
        lines += [line for name, unit, figure in entries for line in _explained(name, unit, figure, width)]
    else:
        rows = [
            [
                name,
                show(figure.value, unit),
                _mark(figure),
                f"{len(figure.alternatives)} other" * bool(figure.alternatives),
            ]
            for name, unit, figure in entries
        ]
        lines.append(render_table(["figure", "value", "", "claims"], rows, align="lrll", width=width))
    lines += ["", *_memory_note(accelerator, width)]
    lines += [line for note in accelerator.notes for line in wrapped(note, width)]
    if not explain:
        lines += ["", f"trilemma hardware {accelerator.id} --explain shows sources, dates and conflicting claims"]
    return "\n".join(line.rstrip() for line in lines)


def figures(accelerator: Accelerator) -> Iterator[tuple[str, str, Figure]]:
    """Every figure with its name and kind of unit, in the order in which they are shown."""
    link, host = accelerator.link, accelerator.host_link
    single: list[tuple[str, str, Figure | None]] = [
        ("memory, label", "label", accelerator.label_figure),
        ("memory, driver total", "bytes", accelerator.nvml_total_bytes),
        ("memory, runtime total", "bytes", accelerator.runtime_total_bytes),
        ("memory bandwidth", "bytes_per_s", accelerator.bandwidth_bytes_per_s),
        *((f"peak {fmt}", "flops", figure) for fmt, figure in accelerator.peak_flops.items()),
        *((f"sparse peak {fmt}", "flops", figure) for fmt, figure in accelerator.sparse_peak_flops.items()),
        ("link, one way", "bytes_per_s", link.bytes_per_s if link else None),
        ("PCIe, one way", "bytes_per_s", accelerator.pcie_bytes_per_s),
        ("link to the host, one way", "bytes_per_s", host.bytes_per_s if host else None),
        ("network per GPU, one way", "bytes_per_s", accelerator.node_bytes_per_s),
        ("TDP", "w", accelerator.tdp_w),
        *((name.replace("_", " "), _fact_unit(name), figure) for name, figure in accelerator.facts.items()),
    ]
    yield from ((name, unit, figure) for name, unit, figure in single if figure is not None)


def show(value: float, unit: str) -> str:
    """``value`` in the unit that people use for its kind."""
    if unit == "label":
        return f"{value:g} GB"
    if unit == "cache":
        return f"{value / MIB:,.0f} MiB"
    divisor, name = _UNITS[unit]
    digits = 2 if unit == "bytes" else 4
    return f"{value / divisor:,.{digits}f}".rstrip("0").rstrip(".") + (f" {name}" if name else "")


def price(accelerator: Accelerator) -> str:
    """The price range in dollars per hour, a single figure where the range is one."""
    interval = accelerator.usd_per_hour
    if interval is None:
        return "–"
    return f"{interval.low:.2f}" if interval.low == interval.high else f"{interval.low:.2f}–{interval.high:.2f}"


def _summary(accelerator: Accelerator) -> list[str]:
    total = runtime_total(accelerator)
    four_bit = accelerator.peak("nvfp4") or accelerator.peak("mxfp4")
    peaks = (
        accelerator.peak_flops.get("bf16") or accelerator.peak_flops.get("fp16"),
        accelerator.peak("fp8"),
        four_bit,
    )
    bandwidth = accelerator.bandwidth_bytes_per_s
    return [
        accelerator.id,
        f"{'~' if total.assumed else ''}{total.interval.value / GIB:.1f}",
        f"{bandwidth.value / 1e12:.2f}{'*' if bandwidth.recalled else ''}",
        *(f"{figure.value / 1e12:,.0f}" if figure else "–" for figure in peaks),
        f"{accelerator.link.bytes_per_s.value / 1e9:.0f}" if accelerator.link else "–",
        f"{accelerator.tdp_w.value:.0f}" if accelerator.tdp_w else "–",
        price(accelerator),
    ]


def _traits(accelerator: Accelerator, width: int) -> Iterator[str]:
    link = accelerator.link
    usual = f", {link.domain_in_common_use} in common use" if link and link.domain_in_common_use else ""
    unstated = [name for name in accelerator.hardware_formats if name not in accelerator.peak_flops]
    pairs = [
        ("vendor", accelerator.vendor),
        ("architecture", accelerator.architecture),
        ("launched", accelerator.launched),
        ("memory", accelerator.memory_type + (", inline ECC" if accelerator.inline_ecc else "")),
        ("matrix formats", ", ".join(accelerator.hardware_formats)),
        ("peak unstated", f"{', '.join(unstated)}: priced at the rate of the next wider format" if unstated else ""),
        ("FP8 flavour", {"ocp": "OCP (E4M3 up to 448)", "fnuz": "FNUZ (E4M3 up to 240)"}.get(accelerator.fp8_flavour or "")),
        ("link", f"{link.name}, domain of {link.domain}{usual}" if link else "none"),
        ("node", f"{accelerator.gpus_per_node} GPUs: {accelerator.node_shape}".rstrip(": ")),
        ("price", f"{price(accelerator)} $/h, {accelerator.price_source} ({accelerator.price_as_of})"
         if accelerator.usd_per_hour else "no list price known"),
    ]  # fmt: skip
    for name, value in pairs:
        if value:
            yield from wrapped(f"{name:<15} {value}", width, subsequent_indent=" " * 16)


def _explained(name: str, unit: str, figure: Figure, width: int) -> Iterator[str]:
    yield f"{name}: {show(figure.value, unit)}{_mark(figure)}"
    yield from _wrapped(f"source: {figure.source}{_date(figure)}", width)
    if figure.why:
        yield from _wrapped(f"chosen because: {figure.why}", width)
    for other in figure.alternatives:
        why = f" ({other.why})" if other.why else ""
        yield from _wrapped(f"not {show(other.value, unit)}{why}: {other.source}{_date(other)}", width)


def _memory_note(accelerator: Accelerator, width: int) -> list[str]:
    total = runtime_total(accelerator)
    interval = total.interval
    text = f"An engine sees {interval.value / GIB:.2f} GiB ({interval.low / GIB:.2f} to {interval.high / GIB:.2f}): {total.why}."
    return wrapped(text, width)


def _wrapped(text: str, width: int) -> list[str]:
    return wrapped(text, width, initial_indent="    ", subsequent_indent="      ")


def _mark(figure: Figure) -> str:
    return " (recalled)" if figure.recalled else ""


def _date(figure: Figure) -> str:
    return f", {figure.as_of}" if figure.as_of else ""


def _fact_unit(name: str) -> str:
    for ending, unit in (("_usd_per_hour", "usd"), ("_hz", "hz"), ("_w", "w")):
        if name.endswith(ending):
            return unit
    if "usd_per_hour" in name:
        return "usd"
    return "cache" if name == "l2_bytes" else "count"
