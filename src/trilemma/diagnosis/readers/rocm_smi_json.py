"""``rocm-smi --json`` (``card0`` …) and ``amd-smi static|list --json`` (a list, or under ``gpu_data``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trilemma.diagnosis.findings import Event, Part, text_of
from trilemma.diagnosis.gpus import MOST_GPUS, facts_of, gpu_event, number_of
from trilemma.diagnosis.readers import Reader

KIND = "rocm-smi-json"
_NAMES = ("Card Series", "Card series", "Device Name", "Card Model", "Card model")


class _Gatherer:
    def __init__(self) -> None:
        self._gpus: list[Event] = []
        self._driver = ""

    def take(self, record: Any, where: str) -> None:
        if not isinstance(record, Mapping):
            return
        if where == "system":
            self._driver = text_of(record.get("Driver version"), 40)
        elif re.fullmatch(r"card\d{1,4}", where):
            self._keep(_of_rocm(where[4:], record))
        elif where in ("", "gpu_data") and "gpu" in record:
            self._keep(_of_amd(record))

    def _keep(self, event: Event | None) -> None:
        if event is not None and len(self._gpus) < MOST_GPUS:
            self._gpus.append(event)

    def part(self) -> Part | None:
        if not self._gpus:
            return None
        facts = facts_of(self._gpus, driver_version=self._driver)
        return Part(kind=KIND, weight=20 + 3 * len(self._gpus), facts=facts, events=tuple(self._gpus))


def _of_rocm(number: str, record: Mapping[str, Any]) -> Event | None:
    if not any(word in key for key in list(record)[:200] for word in ("Card", "VRAM", "GPU", "Device", "Power")):
        return None
    told = [text_of(record.get(key), 80) for key in _NAMES]
    device = next((one for one in (*told, text_of(record.get("Device ID"), 20)) if one.startswith("0x")), "")
    name = next(
        (one for one in told if one and one != "N/A" and not one.startswith("0x")), f"AMD device {device or '?'}"
    )
    size, used = (number_of(text_of(record.get(f"VRAM Total {what}Memory (B)"))) for what in ("", "Used "))
    return gpu_event(
        gpu=number,
        name=name,
        memory_total_mib=None if size is None else size / 2**20,
        memory_free_mib=None if size is None or used is None else (size - used) / 2**20,
        power_limit_w=number_of(text_of(record.get("Max Graphics Package Power (W)"))),
        temperature_c=number_of(text_of(record.get("Temperature (Sensor junction) (C)"))),
        busy=number_of(text_of(record.get("GPU use (%)"))),
    )


def _of_amd(record: Mapping[str, Any]) -> Event:
    asic, vram, bus, limit = (_part(record, name) for name in ("asic", "vram", "bus", "limit"))
    return gpu_event(
        gpu=text_of(record.get("gpu"), 10),
        name=text_of(asic.get("market_name"), 80) or f"AMD device {text_of(asic.get('device_id'), 20) or '?'}",
        uuid=text_of(record.get("uuid"), 60) or None,
        memory_total_mib=_measure(vram.get("size")),
        link_width_most=number_of(text_of(bus.get("max_pcie_width"))),
        power_limit_w=_measure(limit.get("max_power")),
    )


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}


def _measure(told: Any) -> float | None:
    """A number with its unit, as text or as ``{"value": …, "unit": "MB"}``."""
    return number_of(text_of(told.get("value") if isinstance(told, Mapping) else told))


READER = Reader(kind=KIND, form="items", begin=_Gatherer)
