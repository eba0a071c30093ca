"""``rocm-smi`` and ``amd-smi`` as text: the table of a machine, product names, identifiers, ``amd-smi static`` and ``list``."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import MOST_GPUS, facts_of, gpu_event, number_of
from trilemma.diagnosis.readers import Reader

KIND = "rocm-smi"
_LONE = re.compile(r"^GPU\[(\d{1,4})\]\s*: (?:\()?([A-Za-z][^:]{0,60}?)(?:\))?:\s*(.{0,120}?)\s*$")
_ROW = re.compile(r"^(\d{1,4})\s+(?:\d{1,4}\s+|\[)0x([0-9a-fA-F]{4})\b(.{0,200})$")
_PLACE = re.compile(r"\b(NPS\d|N/A), ?(SPX|DPX|TPX|QPX|CPX|N/A)(?:, ?(\d{1,2}))?\b")
_BLOCK = re.compile(r"^GPU: (\d{1,4})\s*$")
_FIELD = re.compile(r"^\s+([A-Z][A-Z_ ]{1,40}): (.{0,120}?)\s*$")
_VERSION = re.compile(r"ROCm version: (\d[\d.]{0,12})")
_DRIVER = re.compile(r"(?:Driver version:|amdgpu version:)\s*(\d[\w.+-]{0,40})")
_NAMES = ("Card Series", "Card series", "Device Name", "Card Model", "Card model")


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._gpus: dict[str, dict[str, Any]] = {}
        self._driver = self._rocm = self._named = ""
        self._block: str | None = None

    def take(self, record: str, where: int) -> None:
        if "ROCm System Management Interface" in record or _BLOCK.match(record):
            self.greedy = True
        elif "End of ROCm SMI Log" in record:
            self.greedy = False
        for pattern, name in ((_VERSION, "_rocm"), (_DRIVER, "_driver")):
            if found := pattern.search(record):
                setattr(self, name, found[1])
        if found := _LONE.match(record):
            self._of_line(found[1], found[2].strip(), found[3], where)
        elif found := _BLOCK.match(record):
            self._block = found[1]
            self._gpu(found[1], where)
        elif self._block is not None and (found := _FIELD.match(record)):
            self._of_field(found[1], found[2])
        elif self.greedy and (found := _ROW.match(record)):
            self._of_row(found[1], found[2], found[3], where)
        elif self.greedy and self._named and record.startswith("      ") and record.strip():
            self._gpus[self._named].setdefault("name", record.strip()[:80])
            self._named = ""

    def _gpu(self, number: str, where: int) -> dict[str, Any]:
        if number not in self._gpus and len(self._gpus) >= MOST_GPUS:
            return {}
        return self._gpus.setdefault(number, {"line": where, "gpu": number})

    def _of_line(self, number: str, key: str, value: str, where: int) -> None:
        gpu = self._gpu(number, where)
        if key in _NAMES and value != "N/A" and not value.startswith("0x"):
            gpu.setdefault("name", value)
        elif key == "Device ID" and value.startswith("0x"):
            gpu.setdefault("device", value[2:].lower())
        elif key == "Device ID" and value == "N/A":  # a partition that is not the first of its card
            gpu["part"] = True
        elif key == "VRAM Total Memory (B)":
            gpu["memory_total_mib"] = _mib(value)

    def _of_field(self, key: str, value: str) -> None:
        gpu = self._gpus.get(self._block or "", {})
        match key:
            case "MARKET_NAME" if value != "N/A":
                gpu["name"] = value
            case "DEVICE_ID" if value.startswith("0x"):
                gpu["device"] = value[2:].lower()
            case "SIZE" if value.endswith("MB"):
                gpu.setdefault("memory_total_mib", number_of(value))
            case "MAX_PCIE_WIDTH":
                gpu["link_width_most"] = number_of(value)
            case "PARTITION_ID" if value.isdigit() and value != "0":
                gpu["part"] = True
            case "UUID":
                gpu["uuid"] = value
            case "VERSION" if not self._driver and re.match(r"\d+\.\d+\.\d+$", value):
                self._driver = value
            case _:
                pass

    def _of_row(self, number: str, device: str, rest: str, where: int) -> None:
        gpu = self._gpu(number, where)
        gpu.setdefault("device", device.lower())
        if (place := _PLACE.search(rest)) is not None:
            gpu["partition"] = None if place[2] in ("SPX", "N/A") else place[2]
            if place[3] not in (None, "0"):
                gpu["part"] = True
        if watts := re.findall(r"(\d{2,4}\.\d)W", rest):
            gpu["power_limit_w"] = float(watts[-1])
        if found := re.search(r"(\d{1,3}\.\d)°C", rest):
            gpu["temperature_c"] = float(found[1])
        self._named = number

    def part(self) -> Part | None:
        gpus = [_event(gpu) for gpu in self._gpus.values() if not gpu.get("part")]
        if not gpus:
            return None
        parts = len(self._gpus) - len(gpus)
        facts = facts_of(
            gpus, driver_version=self._driver, rocm_version=self._rocm, partitions=parts and len(self._gpus)
        )
        return Part(kind=KIND, weight=20 + 3 * len(gpus), facts=facts, events=tuple(gpus))


def _event(gpu: dict[str, Any]) -> Event:
    told = {key: value for key, value in gpu.items() if key not in ("line", "device", "part")}
    name = told.get("name") or _devices().get(gpu.get("device", "")) or f"AMD device 0x{gpu.get('device', '?')}"
    return gpu_event(gpu["line"], **{**told, "name": name})


@cache
def _devices() -> dict[str, str]:
    """PCI device → name, of AMD's devices that are told by it alone."""
    return dict(read_data("diagnosis/amd_devices.toml")["device"])


def _mib(text: str) -> float | None:
    size = number_of(text)
    return None if size is None else size / 2**20


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("GPU[", "ROCm System Management Interface", "GPU: ", "ROCm version:", "Driver version:", "End of ROCm SMI Log"),
)  # fmt: skip
