"""``nvidia-smi --query-gpu=… --format=csv``: the columns that were asked for, one line a GPU or one a sample."""

from __future__ import annotations

import re
from array import array
from math import nan
from typing import Any

from trilemma.diagnosis.derating import SERIES, WORKS, fallen_clocks
from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import MOST_GPUS, facts_of, gpu_event, number_of
from trilemma.diagnosis.readers import Reader

KIND = "nvidia-smi-csv"
_HEAD = re.compile(r"^[a-z_]+(?:\.[a-z_.]+)?(?: \[[A-Za-z%]+\])?(?:\s*,\s*[A-Za-z_0-9.]+(?: \[[A-Za-z%/ ]+\])?)*\s*$")
_LONGEST_HEAD = 20_000
_BARE = re.compile(r"^(?:(\d{1,4}), ?)?((?:NVIDIA|Tesla|Quadro|GeForce) [^,]{1,60}), ?(\d{1,7})(?: MiB)?(?:,|$)")
#: Column → key of a GPU; sizes are MiB, power W, clocks MHz as nvidia-smi writes them.
_NUMBERS = {
    "memory.total": "memory_total_mib", "memory.free": "memory_free_mib", "temperature.gpu": "temperature_c",
    "power.limit": "power_limit_w", "power.default_limit": "power_default_w", "power.max_limit": "power_most_w",
    "enforced.power.limit": "power_limit_w", "clocks.sm": "clock_mhz", "clocks.current.sm": "clock_mhz",
    "clocks.max.sm": "clock_most_mhz", "pcie.link.width.current": "link_width", "pcie.link.width.max": "link_width_most",
    "pcie.link.gen.current": "link_generation", "pcie.link.gen.max": "link_generation_most",
    "pcie.link.gen.gpumax": "link_generation_most", "utilization.gpu": "busy",
    "ecc.errors.uncorrected.volatile.total": "uncorrected_errors",
}  # fmt: skip
#: Columns that are followed over time, as a series names them.
_FOLLOWED = {
    "utilization.gpu": "utilisation_percent", "clocks.sm": "sm_clock_mhz", "clocks.current.sm": "sm_clock_mhz",
    "temperature.gpu": "temperature_c", "power.draw": "power_w", "power.draw.instant": "power_w",
}  # fmt: skip
_MOST_SAMPLES = 200_000
_WORDS = {"name": "name", "gpu_name": "name", "uuid": "uuid", "gpu_uuid": "uuid", "driver_version": "driver"}
_SWITCHES = {"mig.mode.current": "mig", "persistence_mode": "persistence", "ecc.mode.current": "ecc"}
_SLOWED = re.compile(
    r"clocks_(?:throttle|event)_reasons\.(hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown)$"
)


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._columns: list[str] = []
        self._gpus: dict[str, Event] = {}
        self._samples = 0
        self._series: dict[str, dict[str, array[float]]] = {}

    def take(self, record: str, where: int) -> None:
        columns = [cell.strip().partition(" [")[0] for cell in record.split(",")]
        if (
            len(record) < _LONGEST_HEAD
            and _HEAD.match(record)
            and {"name", "gpu_name", "memory.total", "index"} & set(columns)
        ):
            self._columns, self.greedy = columns, True
        elif self.greedy and len(cells := [cell.strip() for cell in record.split(",")]) == len(self._columns):
            self._keep(dict(zip(self._columns, cells, strict=True)), where)
        elif self.greedy and record.strip():
            self.greedy = False
        elif not self.greedy and (found := _BARE.match(record)):
            row = {"index": found[1] or str(len(self._gpus)), "name": found[2], "memory.total": found[3]}
            self._keep(row, where)

    def _keep(self, row: dict[str, str], where: int) -> None:
        self._samples += 1
        at = row.get("uuid") or row.get("gpu_uuid") or row.get("pci.bus_id") or row.get("index") or str(len(self._gpus))
        if len(self._gpus) < MOST_GPUS or at in self._gpus:
            values = _values(row, at)
            self._gpus[at] = gpu_event(where, **values)
            if self._samples <= _MOST_SAMPLES:
                self._follow(at, row, where, slowed=bool(values["slowed_by"]))

    def _follow(self, at: str, row: dict[str, str], where: int, *, slowed: bool) -> None:
        """One more sample of a GPU's clock and of what stands beside it."""
        told = dict.fromkeys(SERIES, nan) | {"line": float(where)}
        for column, name in _FOLLOWED.items():
            value = number_of(row.get(column, ""))
            told |= {name: value} if value is not None else {}
        if any(_SLOWED.match(column) for column in row):
            told["thermal_violation"] = float(slowed)
        series = self._series.setdefault(at, {name: array("d") for name in told})
        for name, value in told.items():
            series[name].append(value)

    def part(self) -> Part | None:
        gpus = list(self._gpus.values())
        if not gpus:  # a head without rows: no process runs, none was accounted for
            return Part(kind=KIND, weight=1, facts={"gpus": 0, "samples": 0}) if self._columns else None
        driver = next((gpu.values["driver"] for gpu in gpus if gpu.values["driver"]), None)
        facts = facts_of(gpus, driver_version=driver, samples=self._samples)
        fallen = [
            Event(name="samples", line=falls["fell_at_line"], values={"gpu": self._gpus[at].values["gpu"], **falls})
            for at, series in self._series.items()
            if (falls := fallen_clocks(series, works=WORKS))
        ]
        return Part(kind=KIND, weight=20 + self._samples, facts=facts, events=(*gpus, *fallen))


def _values(row: dict[str, str], at: str) -> dict[str, Any]:
    values: dict[str, Any] = {"gpu": row.get("index") or at[:40]}
    slowed = []
    for column, text in row.items():
        if column in _NUMBERS:
            values[_NUMBERS[column]] = number_of(text)
        elif column in _WORDS:
            values[_WORDS[column]] = text[:80]
        elif column in _SWITCHES:
            values[_SWITCHES[column]] = {"Enabled": True, "Disabled": False}.get(text)
        elif (found := _SLOWED.match(column)) and text == "Active":
            slowed.append(found[1])
    if values.get("uncorrected_errors") is not None:
        values["uncorrected_errors"] = int(values["uncorrected_errors"])
    return values | {"slowed_by": sorted(slowed)}


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("memory.total", "driver_version", "gpu_name", "name,", "index,", "NVIDIA ", "Tesla ", "Quadro ", "GeForce "),
)  # fmt: skip
