"""What was measured as an accelerator file: the catalogue's card under its own figures, or a card that nothing tells of."""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Mapping
from typing import Any

from trilemma import __version__
from trilemma.errors import InputError, UnknownName
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import find_measured
from trilemma.hardware.reader import catalogue_file, parse_accelerator, read_text
from trilemma.measuring.device import Device
from trilemma.measuring.suite import Measurement
from trilemma.quantities import GIB
from trilemma.timing.coefficients import coefficients_for

#: A card that reaches less than this share of what its kind is known to reach is a slower one (power cap, fewer stacks).
_SLOWER = 0.92
_VENDORS = {"cuda": "NVIDIA", "rocm": "AMD", "cpu": "CPU"}
#: Formats of a card that nothing tells of that have units of their own: those that multiply this much faster than FP32.
_FASTER = 1.5


def known_card(device: Device) -> Accelerator | None:
    """The card of the catalogue that ``device`` is; None for a processor, or a card that it does not hold."""
    if not device.on_card:
        return None
    try:
        return find_measured(device.name, device.memory_bytes / GIB)[0]
    except (UnknownName, InputError):
        return None


def card_text(found: Measurement) -> str:
    """The accelerator file, as ``--gpu FILE`` reads it."""
    known = known_card(found.device)
    document = _own(found) if known is None else _of_catalogue(found, known)
    text = _toml(document)
    parse_accelerator(text, name="measured", where="the file that was to be written")
    return text


def compared(found: Measurement, known: Accelerator | None) -> dict[str, float]:
    """Figure → the catalogue's figure for the same card, where it has one: peaks of products, bandwidth, links."""
    if known is None:
        return {}
    told: dict[str, float] = {
        f"products_{fmt}_flops_per_s": peak.value
        for fmt, peak in known.peak_flops.items()
        if fmt in known.hardware_formats
    }
    told["copy_bytes_per_s"] = known.bandwidth_bytes_per_s.value
    told |= {name: known.bandwidth_bytes_per_s.value for name in found.names() if name.startswith("stream_")}
    if known.host_bytes_per_s is not None:
        told |= dict.fromkeys(
            ("host_to_device_bytes_per_s", "device_to_host_bytes_per_s"), known.host_bytes_per_s.value
        )
    if known.link is not None:
        told |= {name: known.link.bytes_per_s.value for name in found.names() if name.startswith("all_")}
    return told


def _figures(found: Measurement) -> dict[str, Any]:
    """The table of what was measured: of each figure the best shape."""
    table = {}
    for name in found.names():
        best = found.best(name)
        if best is not None:
            text = f"{best.shape}; median of {best.timing.repeats}, spread {best.timing.spread:.1%}"
            table[name] = {"value": _digits(best.value), "source": text}
    return table


def _said(found: Measurement) -> dict[str, str]:
    """Who says so, and when."""
    threads = "" if found.device.on_card else f", {found.device.threads} threads"
    mode = "--full" if found.full else "--quick"
    source = f"trilemma {__version__} measure {mode}, PyTorch {found.device.torch.__version__}{threads}"
    return {"source": source, "as_of": datetime.date.today().isoformat()}


def _of_catalogue(found: Measurement, known: Accelerator) -> dict[str, Any]:
    """The catalogue's own file with what differs here. Peaks and bandwidth stay what they are on the datasheet, which fitted
    coefficients multiply, unless this card is slower than its kind."""
    document = tomllib.loads(read_text(catalogue_file(known.id)))
    said = _said(found)
    document["measured_as"] = known.id
    document["measured"] = _figures(found)
    memory = document["memory"]
    _replaced(memory, "runtime_total_bytes", found.device.memory_bytes, said, "the runtime's own total here")
    for fmt, reached in _reached(found, known).items():
        if reached < _SLOWER:
            value = known.peak_flops[fmt].value * reached
            _replaced(document["peak_flops"], fmt, value, said, f"products reach {reached:.0%} of what such cards do")
    shares = coefficients_for(known)
    stream = found.best("stream_bf16_bytes_per_s")
    if stream is not None:
        reached = stream.value / (known.bandwidth_bytes_per_s.value * float(shares.stream_share(16)))
        if reached < _SLOWER:
            value = known.bandwidth_bytes_per_s.value * reached
            _replaced(
                memory, "bandwidth_bytes_per_s", value, said, f"weights stream at {reached:.0%} of what such cards do"
            )
    return document


def _reached(found: Measurement, known: Accelerator) -> dict[str, float]:
    """What products of each format reach of what such cards do; a format that was not measured is as slow as BF16's."""
    shares = coefficients_for(known)
    reached = {}
    for fmt in known.hardware_formats:
        best = found.best(f"products_{fmt}_flops_per_s")
        if best is not None and fmt in known.peak_flops and fmt != "fp32":
            usual = known.facts.get(f"matmul_fraction_{fmt}")
            share = usual.value if usual is not None else float(shares.matmul_share(fmt))
            reached[fmt] = best.value / (known.peak_flops[fmt].value * share)
    slow = reached.get("bf16", 1.0)
    return {fmt: reached.get(fmt, slow) for fmt in known.peak_flops}


def _replaced(table: dict[str, Any], key: str, value: float, said: Mapping[str, str], why: str) -> None:
    """Put a measured figure in the place of one that stays beside it as an alternative."""
    before = table.get(key)
    if before is not None and abs(before["value"] / value - 1) < 1e-6:
        return
    others = [{name: part for name, part in before.items() if name != "alternatives"}] if before is not None else []
    table[key] = {"value": _digits(value), **said, "why": why, **({"alternatives": others} if others else {})}


def _own(found: Measurement) -> dict[str, Any]:
    device, said = found.device, _said(found)
    peaks = {
        fmt: best.value
        for fmt in ("fp32", "bf16", "fp16", "fp8")
        if (best := found.best(f"products_{fmt}_flops_per_s")) is not None
    }
    if not peaks:
        raise InputError("no matrix product was measured; see what was left out")
    least = min(peaks.values())
    native = [fmt for fmt in peaks if fmt == "fp32" or peaks[fmt] > _FASTER * least]
    rates = [one.value for one in found.figures if one.figure.startswith(("copy_", "stream_"))]
    memory: dict[str, Any] = {
        "runtime_total_bytes": {"value": _digits(device.memory_bytes), **said},
        "bandwidth_bytes_per_s": {
            "value": _digits(max(rates, default=1e9)),
            **said,
            "why": "the fastest of what streamed here",
        },
    }
    head: dict[str, Any] = {
        "name": device.name, "vendor": _VENDORS[device.kind], "architecture": device.architecture or device.kind,
        "label_gb": _digits(max(device.memory_bytes / 1e9, 0.25)), "hardware_formats": native,
    }  # fmt: skip
    if device.compute_capability is not None:
        head["compute_capability"] = device.compute_capability
    if device.kind == "cpu":
        head["unified_memory"] = True
    return {
        **head,
        "notes": ["measured: peaks are what products reached here, not a datasheet's"],
        "memory": memory,
        "peak_flops": {fmt: {"value": _digits(value), **said} for fmt, value in peaks.items()},
        "node": {"gpus": 1},
        "measured": _figures(found),
    }


def _digits(value: float) -> float:
    return float(f"{value:.12g}") if value >= 1e6 else float(f"{value:.5g}")


def _toml(document: Mapping[str, Any]) -> str:
    """TOML of a document of plain values and tables of figures, plain values first."""
    lines = [f"{key} = {_value(value)}" for key, value in document.items() if not isinstance(value, Mapping)]
    for key, table in document.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{key}]", *(f"{name} = {_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=True)
