"""The JSON form of an accelerator: entries of ``trilemma/hardware@1``, in base units."""

from __future__ import annotations

from typing import Any

from trilemma.hardware.accelerator import Accelerator, Figure
from trilemma.hardware.memory import runtime_total
from trilemma.intervals import Interval


def accelerator_document(accelerator: Accelerator, *, whole: bool) -> dict[str, Any]:
    """``accelerator`` as plain data; ``whole`` adds source, date and rival claims to each figure. Absent keys are unknown."""
    show = _figure if whole else _value
    total = runtime_total(accelerator)
    link, host = accelerator.link, accelerator.host_link
    entry: dict[str, Any] = {
        "id": accelerator.id,
        "name": accelerator.name,
        "vendor": accelerator.vendor,
        "architecture": accelerator.architecture,
        "compute_capability": accelerator.compute_capability,
        "launched": accelerator.launched,
        "label_gb": accelerator.label_gb,
        "memory_type": accelerator.memory_type,
        "unified_memory": accelerator.unified_memory or None,
        "inline_ecc": accelerator.inline_ecc or None,
        "nvml_total_bytes": show(accelerator.nvml_total_bytes),
        "runtime_total_bytes": _interval(total.interval) | {"assumed": total.assumed, "why": total.why},
        "runtime_total_measured": show(accelerator.runtime_total_bytes) if whole else None,
        "bandwidth_bytes_per_s": show(accelerator.bandwidth_bytes_per_s),
        "peak_flops": {fmt: show(figure) for fmt, figure in accelerator.peak_flops.items()},
        "sparse_peak_flops": {fmt: show(figure) for fmt, figure in accelerator.sparse_peak_flops.items()} or None,
        "hardware_formats": list(accelerator.hardware_formats),
        "fp8_flavour": accelerator.fp8_flavour,
        "link": _without_absent(
            {
                "name": link.name,
                "bytes_per_s": show(link.bytes_per_s),
                "domain": link.domain,
                "domain_in_common_use": link.domain_in_common_use or None,
            }
        )
        if link
        else None,
        "pcie_bytes_per_s": show(accelerator.pcie_bytes_per_s),
        "host_link": {"name": host.name, "bytes_per_s": show(host.bytes_per_s)} if host else None,
        "gpus_per_node": accelerator.gpus_per_node,
        "node_shape": accelerator.node_shape,
        "node_bytes_per_s": show(accelerator.node_bytes_per_s),
        "tdp_w": show(accelerator.tdp_w),
        "usd_per_hour": _price(accelerator),
        "facts": {name: show(figure) for name, figure in accelerator.facts.items()} or None,
        "notes": list(accelerator.notes) or None,
    }
    return _without_absent(entry)


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    if figure is None:
        return None
    return _without_absent(
        {
            "value": figure.value,
            "source": figure.source,
            "as_of": figure.as_of,
            "recalled": figure.recalled or None,
            "why": figure.why,
            "alternatives": [_figure(other) for other in figure.alternatives] or None,
        }
    )


def _price(accelerator: Accelerator) -> dict[str, Any] | None:
    if accelerator.usd_per_hour is None:
        return None
    return _interval(accelerator.usd_per_hour) | {
        "source": accelerator.price_source,
        "as_of": accelerator.price_as_of,
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _without_absent(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value is not None and value != ""}
