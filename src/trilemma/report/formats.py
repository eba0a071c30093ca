"""Number formats for people and for programs: the catalogue, one format in full, the comparison."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trilemma.formats.catalogue import sources
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped

_SECTIONS: tuple[tuple[str, Callable[[Format], bool]], ...] = (
    ("floating point", lambda one: one.kind == "float" and one.granularity == "none"),
    ("floating point with scales", lambda one: one.kind == "float" and one.granularity != "none"),
    ("integers", lambda one: one.kind == "int" and one.granularity == "none"),
    ("integers with scales", lambda one: one.kind == "int" and one.granularity != "none"),
    ("codebooks", lambda one: one.kind == "codebook"),
    ("GGUF blocks", lambda one: one.kind == "packed"),
)
#: A shape that is large enough for scales per channel to show their true cost.
_SHAPE = (4096, 4096)


def render_formats(formats: Sequence[Format], *, explain: bool = False, width: int | None = None) -> str:
    """One line per format, by family; with ``explain`` the source and how its effective bits come about."""
    parts = []
    for title, belongs in _SECTIONS:
        some = [one for one in formats if belongs(one)]
        if not some:
            continue
        if some[0].kind in {"packed", "codebook"}:
            headers, rows = ["format", "bits", "effective", "block", "used for"], [_packed_row(one) for one in some]
        else:
            headers = ["format", "bits", "effective", "max", "least normal", "epsilon", "used for"]
            rows = [_row(one) for one in some]
        parts.append(
            f"{title}\n"
            + render_table(
                headers,
                rows,
                align="l" + "r" * (len(headers) - 2) + "l",
                width=width,
                whole=headers[:1],
                yields=("epsilon", "least normal"),
            )
        )
        if explain:
            parts.append("\n".join(f"  {one.name}: {effective_formula(one)}; {sources()[one.source]}" for one in some))
    notes = (
        "effective: bits per element with scales and zero points of a large tensor. max, least normal, epsilon: of one"
        " element before scaling (epsilon of integers is their step). trilemma formats NAME shows one in full, --compare"
        " what each keeps of three kinds of data."
    )
    return "\n\n".join([*parts, textwrap.fill(notes, width=min(width or 100, 100))])


def render_format(
    fmt: Format,
    accelerators: Iterable[Accelerator],
    quality: Mapping[str, float] | None,
    *,
    explain: bool,
    width: int = 100,
) -> str:
    """All there is to know of one format."""
    lines = [f"{fmt.name}: {fmt.used}", ""]
    lines.append(render_table(["fact", "value"], list(_facts(fmt)), align="ll", width=width))
    lines += ["", "In hardware", *_hardware_lines(fmt, list(accelerators), explain=explain, width=width)]
    if quality:
        heading = ["kept of", *quality]
        cells = [["signal to noise, dB", *(show_db(value) for value in quality.values())]]
        lines += ["", render_table(heading, cells, align="l" + "r" * len(quality), width=width)]
    if fmt.pitfalls:
        lines += ["", "Pitfalls"]
        lines += [_bullet(text, width) for text in fmt.pitfalls]
    lines += ["", *wrapped(f"Source: {sources()[fmt.source]}", width=width)]
    if explain:
        lines += wrapped(f"Effective bits: {effective_formula(fmt)}", width=width)
    return "\n".join(line.rstrip() for line in lines)


def render_comparison(
    measured: Mapping[str, tuple[Format, Mapping[str, float]]], kinds: Mapping[str, str], *, width: int | None = None
) -> str:
    """Formats with what they keep, fewest effective bits first."""
    ordered = sorted(measured.values(), key=lambda pair: (pair[0].effective_bits, pair[0].name))
    columns = list(ordered[0][1]) if ordered else []
    rows = [
        [one.name, _show_bits(one.effective_bits), *(show_db(quality[column]) for column in columns)]
        for one, quality in ordered
    ]
    table = render_table(["format", "bits", *columns], rows, align="l" + "r" * (len(columns) + 1), width=width)
    notes = [f"{kind}: {what}." for kind, what in kinds.items()]
    notes.append(
        "beside outliers: the ordinary columns of the same tensor, which an outlier in their unit pushes down."
    )
    return f"signal to quantisation noise, dB\n{table}\n\n" + "\n".join(notes)


def format_document(fmt: Format, accelerators: Iterable[Accelerator] | None = None) -> dict[str, Any]:
    """``fmt`` as plain data; keys that do not apply are absent."""
    entry: dict[str, Any] = {
        "name": fmt.name,
        "kind": fmt.kind,
        "bits": fmt.bits,
        "effective_bits": fmt.effective_bits,
        "granularity": fmt.granularity,
        "group": fmt.group or None,
        "block": list(fmt.block) if fmt.granularity == "block" else None,
        "element": fmt.element or None,
        "scale_format": fmt.scale_format or None,
        "scale_bits": fmt.scale_bits or None,
        "zero_point_bits": fmt.zero_point_bits or None,
        "superblock": fmt.superblock or None,
        "superblock_bits": fmt.superblock_bits or None,
        "tensor_bits": fmt.tensor_bits or None,
        "block_bytes": fmt.block_bytes or None,
        "exponent_bits": fmt.exponent_bits,
        "mantissa_bits": fmt.mantissa_bits,
        "bias": fmt.bias,
        "max_value": fmt.max_value,
        "min_value": fmt.min_value,
        "smallest_normal": fmt.smallest_normal,
        "smallest_subnormal": fmt.smallest_subnormal,
        "epsilon": fmt.epsilon,
        "has_infinity": fmt.has_infinity if fmt.exponent_bits is not None else None,
        "has_nan": fmt.has_nan if fmt.exponent_bits is not None else None,
        "aliases": list(fmt.aliases) or None,
        "used": fmt.used,
        "pitfalls": list(fmt.pitfalls) or None,
        "source": sources()[fmt.source],
        "hardware_format": fmt.hardware or None,
    }
    if accelerators is not None and fmt.hardware:
        have = [one for one in accelerators if in_hardware(fmt, one)]
        entry["accelerators"] = [one.id for one in have]
        entry["slower_than_bf16"] = [one.id for one in have if slower_than_bf16(fmt, one)]
    return {key: value for key, value in entry.items() if value is not None}


def in_hardware(fmt: Format, accelerator: Accelerator) -> bool:
    """Whether ``accelerator`` has matrix units that multiply ``fmt`` as it is.

    The two FP8 codings are different formats; where an accelerator's is not stated the OCP one is taken for it.
    """
    if fmt.hardware not in accelerator.hardware_formats:
        return False
    return fmt.hardware != "fp8" or (fmt.special == "fnuz") == (accelerator.fp8_flavour == "fnuz")


def slower_than_bf16(fmt: Format, accelerator: Accelerator) -> bool:
    """Whether the peak of ``fmt`` is below that of BF16 there: the format saves bytes, but costs time in large batches."""
    own, wide = accelerator.peak_flops.get(fmt.hardware), accelerator.peak_flops.get("bf16")
    return fmt.bits < 16 and own is not None and wide is not None and own.value < wide.value


def effective_formula(fmt: Format) -> str:
    """How the effective bits come about."""
    total = _show_bits(fmt.effective_bits)
    if fmt.block_bytes:
        return f"{fmt.block_bytes} bytes · 8 / {fmt.group} elements = {total}"
    parts = [show(fmt.bits)]
    unit = {"group": str(fmt.group), "flat": str(fmt.group), "block": f"({fmt.block[0]} · {fmt.block[1]})"}.get(
        fmt.granularity, fmt.granularity
    )
    if fmt.scale_bits:
        parts.append(f"{show(fmt.scale_bits)} / {unit}")
    if fmt.zero_point_bits:
        parts.append(f"{show(fmt.zero_point_bits)} / {unit}")
    if fmt.superblock:
        parts.append(f"{show(fmt.superblock_bits)} / ({unit} · {fmt.superblock})")
    if fmt.tensor_bits:
        parts.append(f"{show(fmt.tensor_bits)} / tensor")
    return f"{' + '.join(parts)} = {total}" if len(parts) > 1 else total


def show(value: float | None) -> str:
    """A number in at most five significant digits; powers of two beyond plain digits as such."""
    if value is None:
        return "–"
    if value and not 1e-4 < abs(value) < 1e6:
        mantissa, exponent = math.frexp(value)
        return f"2^{exponent - 1}" if mantissa == 0.5 else f"{value:.4g}"
    return f"{value:,.5g}" if value != int(value) else f"{int(value):,}"


def show_db(value: float) -> str:
    """Decibels with one digit; nothing lost is "exact"."""
    return "exact" if math.isinf(value) else f"{value:.1f}"


def _show_bits(bits: float) -> str:
    return f"{bits:.6g}"


def _row(fmt: Format) -> list[str]:
    return [
        fmt.name,
        show(fmt.bits),
        _show_bits(fmt.effective_bits),
        show(fmt.max_value),
        show(fmt.smallest_normal),
        show(fmt.epsilon),
        fmt.used,
    ]


def _packed_row(fmt: Format) -> list[str]:
    return [fmt.name, show(fmt.bits), _show_bits(fmt.effective_bits), str(fmt.group), fmt.used]


def _facts(fmt: Format) -> Iterable[list[str]]:
    yield ["bits per element", show(fmt.bits)]
    yield ["effective bits", effective_formula(fmt)]
    if fmt.granularity in {"tensor", "channel", "block"}:
        stored = 8 * fmt.storage_bytes(_SHAPE) / math.prod(_SHAPE)
        yield ["bits in a 4096 × 4096 matrix", f"{stored:.6g}"]
    if fmt.element:
        yield ["element", fmt.element]
    if fmt.scale_bits:
        kind = fmt.scale_format or f"{show(fmt.scale_bits)} bits"
        yield ["scale", f"{kind} per {_unit(fmt)}"]
    if fmt.zero_point_bits:
        yield ["zero point", f"{show(fmt.zero_point_bits)} bits per {_unit(fmt)}"]
    if fmt.superblock:
        yield ["second level", f"{show(fmt.superblock_bits)} bits per {fmt.superblock} scales"]
    if fmt.tensor_bits:
        yield ["tensor level", f"{show(fmt.tensor_bits)} bits per matrix"]
    if fmt.block_bytes:
        yield ["block", f"{fmt.group} elements in {fmt.block_bytes} bytes"]
    if fmt.exponent_bits is not None:
        sign = 1 if fmt.signed else 0
        yield [
            "coding",
            f"{sign} sign, {fmt.exponent_bits} exponent (bias {fmt.bias}), {fmt.mantissa_bits} mantissa bits",
        ]
        specials = ["infinity"] * fmt.has_infinity + ["NaN"] * fmt.has_nan
        yield ["special codes", " and ".join(specials) or "none: every code is a number"]
    for label, value in (
        ("largest", fmt.max_value),
        ("lowest", fmt.min_value),
        ("least normal", fmt.smallest_normal),
        ("least subnormal", fmt.smallest_subnormal),
        ("epsilon" if fmt.kind != "int" else "step", fmt.epsilon),
    ):
        if value is not None:
            yield [label, show(value)]
    if fmt.aliases:
        yield ["also called", ", ".join(fmt.aliases)]


def _unit(fmt: Format) -> str:
    match fmt.granularity:
        case "group":
            return f"{fmt.group} neighbours of a row"
        case "flat":
            return f"{fmt.group} neighbours of the flattened matrix"
        case "block":
            return f"{fmt.block[0]} × {fmt.block[1]} block"
        case "channel":
            return "output row"
    return "matrix"


def _hardware_lines(fmt: Format, accelerators: list[Accelerator], *, explain: bool, width: int) -> list[str]:
    if not fmt.hardware:
        return [_bullet("no matrix units of its own: expanded to 16 bits (or FP32) before it is multiplied", width)]
    have = [one for one in accelerators if in_hardware(fmt, one)]
    lines = []
    by_architecture: dict[str, list[str]] = {}
    for one in have:
        unstated = " (FP8 coding not stated)" if fmt.hardware == "fp8" and one.fp8_flavour is None else ""
        by_architecture.setdefault(f"{one.vendor} {one.architecture}{unstated}", []).append(one.id)
    for architecture, ids in by_architecture.items():
        some = ", ".join(ids) if explain or len(ids) < 3 else f"{ids[0]} and {len(ids) - 1} more"
        lines.append(_bullet(f"{architecture}: {some}", width))
    slow = [one for one in have if slower_than_bf16(fmt, one)]
    if slow:
        figures = "; ".join(
            f"{one.id} {one.peak_flops[fmt.hardware].value / 1e12:,.0f} against {one.peak_flops['bf16'].value / 1e12:,.0f}"
            for one in slow
        )
        lines.append(_bullet(f"slower than BF16 there (dense TFLOP/s): {figures}", width))
    return lines or [_bullet("on no accelerator of the catalogue", width)]


def _bullet(text: str, width: int) -> str:
    return textwrap.fill(text, width=width, initial_indent="- ", subsequent_indent="  ")
