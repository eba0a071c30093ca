"""``nvidia-smi -q`` as text: what the XML says, in indented lines (drivers 375 to 610)."""

from __future__ import annotations

import re

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import MOST_GPUS, facts_of, gpu_event, number_of
from trilemma.diagnosis.readers import Reader

KIND = "nvidia-smi-q"
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{4,12})\s*$")
_LINE = re.compile(r"^( *)(\S[^:]{0,60}?) *(?:: ?(.{0,200}))?$")
_SLOWED = {
    "HW Slowdown": "hw_slowdown", "HW Thermal Slowdown": "hw_thermal_slowdown",
    "HW Power Brake Slowdown": "hw_power_brake_slowdown", "SW Thermal Slowdown": "sw_thermal_slowdown",
}  # fmt: skip
_MOST_LINES = 1200  # of one GPU; what is beyond is not its own


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._driver = self._cuda = ""
        self._gpus: list[Event] = []
        self._path: list[tuple[int, str]] = []
        self._now: tuple[int, dict[str, str]] | None = None

    def take(self, record: str, where: int) -> None:
        if "NVSMI LOG" in record:
            self.greedy = True
        elif self.greedy:
            self._line(record, where)

    def _line(self, record: str, where: int) -> None:
        if found := _GPU.match(record.rstrip()):
            self._close()
            self._now, self._path = (where, {"bus": found[1]}), []
            return
        found = _LINE.match(record.rstrip())
        if found is None:
            return
        depth, key, value = len(found[1]), found[2], found[3]
        while self._path and self._path[-1][0] >= depth:
            self._path.pop()
        if self._now is None:
            self._driver = value or "" if key == "Driver Version" else self._driver
            self._cuda = value or "" if key.startswith("CUDA ") and key.endswith("Version") else self._cuda
        elif value is None:
            self._path = [*self._path, (depth, key)][-8:]
        elif len(self._now[1]) < _MOST_LINES:
            inside = [name for _, name in self._path]
            self._now[1].setdefault("/".join([*inside, key]), value.strip())

    def _close(self) -> None:
        if self._now is not None and len(self._gpus) < MOST_GPUS:
            self._gpus.append(_gpu(*self._now, driver=self._driver))
        self._now = None

    def part(self) -> Part | None:
        self._close()
        if not self._gpus:
            return None
        facts = facts_of(self._gpus, driver_version=self._driver, cuda_version=self._cuda)
        return Part(kind=KIND, weight=50 + 20 * len(self._gpus), facts=facts, events=tuple(self._gpus))


def _gpu(line: int, told: dict[str, str], *, driver: str) -> Event:
    def first(*paths: str) -> str:
        return next((told[path] for path in paths if path in told), "")

    link = "PCI/GPU Link Info/"
    reasons = [key for key in told if key.startswith(("Clocks Throttle Reasons/", "Clocks Event Reasons/"))]
    slowed = {_SLOWED[name] for key in reasons if told[key] == "Active" and (name := key.rpartition("/")[2]) in _SLOWED}
    power = next(
        (room for room in ("GPU Power Readings/", "Power Readings/") if any(key.startswith(room) for key in told)), ""
    )
    errors = [value for key, value in told.items() if key.startswith("ECC Errors/Volatile/") and "ncorrectable" in key]
    return gpu_event(
        line,
        gpu=told["bus"],
        name=told.get("Product Name", ""),
        uuid=told.get("GPU UUID"),
        driver=driver or None,
        memory_total_mib=number_of(told.get("FB Memory Usage/Total", "")),
        memory_free_mib=number_of(told.get("FB Memory Usage/Free", "")),
        uncorrected_errors=int(sum(number_of(value) or 0 for value in errors)),
        ecc=_switch(first("ECC Mode/Current", "Ecc Mode/Current")),
        remap_pending=first("Remapped Rows/Pending") == "Yes",
        remap_failed=first("Remapped Rows/Remapping Failure Occurred") == "Yes",
        recovery_action=first("GPU Recovery Action"),
        slowed_by=sorted(slowed),
        link_width=number_of(first(f"{link}Link Width/Current")),
        link_width_most=number_of(first(f"{link}Link Width/Max")),
        link_generation=number_of(first(f"{link}PCIe Generation/Current")),
        link_generation_most=number_of(first(f"{link}PCIe Generation/Max")),
        temperature_c=number_of(first("Temperature/GPU Current Temp")),
        power_limit_w=number_of(first(f"{power}Current Power Limit", f"{power}Power Limit")),
        power_default_w=number_of(first(f"{power}Default Power Limit")),
        power_most_w=number_of(first(f"{power}Max Power Limit")),
        clock_mhz=number_of(first("Clocks/SM")),
        clock_most_mhz=number_of(first("Max Clocks/SM")),
        mig=first("MIG Mode/Current", "Mig Mode/Current") == "Enabled",
        persistence=_switch(told.get("Persistence Mode", "")),
        busy=number_of(first("Utilization/Gpu", "Utilization/GPU")),
    )  # fmt: skip


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("NVSMI LOG",))
