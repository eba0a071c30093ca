"""``nvidia-smi -q -x``: the state of every GPU of a machine (schemas nvsmi_device v10 to v13)."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import gpu_event
from trilemma.diagnosis.readers import Reader

KIND = "nvidia-smi-xml"
_MOST_GPUS = 1024
_SLOWED = re.compile(
    r"clocks_(?:throttle|event)_reason_(hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown)$"
)


class _Gatherer:
    def __init__(self) -> None:
        self._root: Element | None = None

    def take(self, record: Element, where: str) -> None:
        if where == "nvidia_smi_log":
            self._root = record

    def part(self) -> Part | None:
        if self._root is None:
            return None
        driver = _text(self._root, "driver_version")
        gpus = [_gpu(one, driver) for one in self._root.findall("gpu")[:_MOST_GPUS]]
        facts: dict[str, Any] = {"gpus": len(gpus)}
        attached = _number(_text(self._root, "attached_gpus"))
        if attached and attached > len(gpus):  # a recording that was cut
            facts["attached_gpus"] = int(min(attached, _MOST_GPUS))
        for name in ("driver_version", "cuda_version"):
            if text := _text(self._root, name):
                facts[name] = text
        facts["names"] = sorted({gpu.values["name"] for gpu in gpus})[:8]
        facts["memory_total_mib"] = sorted(
            {gpu.values["memory_total_mib"] for gpu in gpus if gpu.values["memory_total_mib"]}
        )
        return Part(kind=KIND, weight=1000, facts=facts, events=tuple(gpus))


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()[:120]


def _number(text: str) -> float | None:
    found = re.match(r"[0-9.]{1,12}", text)
    try:
        return float(found[0]) if found else None
    except ValueError:
        return None


def _gpu(gpu: Element, driver: str) -> Event:
    link = "pci/pci_gpu_link_info"
    ecc = gpu.find("ecc_errors/volatile")
    uncorrected = 0.0
    for one in () if ecc is None else ecc.iter():
        if "uncorrectable" in one.tag:
            uncorrected += _number((one.text or "").strip()) or 0.0
    slowed = sorted(
        found[1]
        for reasons in ("clocks_throttle_reasons", "clocks_event_reasons")
        for one in (gpu.find(reasons) or ())
        if (found := _SLOWED.match(one.tag)) and (one.text or "").strip() == "Active"
    )
    power = "gpu_power_readings" if gpu.find("gpu_power_readings") is not None else "power_readings"
    return gpu_event(
        gpu=str(gpu.get("id", "?"))[:40],
        name=_text(gpu, "product_name"),
        uuid=_text(gpu, "uuid") or None,
        driver=driver or None,
        memory_total_mib=_number(_text(gpu, "fb_memory_usage/total")),
        memory_free_mib=_number(_text(gpu, "fb_memory_usage/free")),
        uncorrected_errors=int(uncorrected),
        ecc=_switch(_text(gpu, "ecc_mode/current_ecc")),
        remap_pending=_text(gpu, "remapped_rows/remapped_row_pending") == "Yes",
        remap_failed=_text(gpu, "remapped_rows/remapped_row_failure") == "Yes",
        recovery_action=_text(gpu, "gpu_recovery_action"),
        slowed_by=slowed,
        link_width=_number(_text(gpu, f"{link}/link_widths/current_link_width")),
        link_width_most=_number(_text(gpu, f"{link}/link_widths/max_link_width")),
        link_generation=_number(_text(gpu, f"{link}/pcie_gen/current_link_gen")),
        link_generation_most=_number(_text(gpu, f"{link}/pcie_gen/max_link_gen")),
        temperature_c=_number(_text(gpu, "temperature/gpu_temp")),
        power_limit_w=_number(_text(gpu, f"{power}/current_power_limit") or _text(gpu, f"{power}/power_limit")),
        power_default_w=_number(_text(gpu, f"{power}/default_power_limit")),
        power_most_w=_number(_text(gpu, f"{power}/max_power_limit")),
        clock_mhz=_number(_text(gpu, "clocks/sm_clock")),
        clock_most_mhz=_number(_text(gpu, "max_clocks/sm_clock")),
        mig=_text(gpu, "mig_mode/current_mig") == "Enabled",
        persistence=_switch(_text(gpu, "persistence_mode")),
        busy=_number(_text(gpu, "utilization/gpu_util")),
    )


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)


READER = Reader(kind=KIND, form="xml", begin=_Gatherer)
