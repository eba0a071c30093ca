"""The machine around the GPUs: ``sysctl``, ``system_profiler``, ``/proc/meminfo``, ``ulimit -a``, ``df``, ``lspci``."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import MOST_GPUS, gpu_event
from trilemma.diagnosis.readers import Reader

KIND = "host-state"
_WHOLE = {
    "memory_total_bytes": (re.compile(r"^hw\.memsize: (\d{6,18})\s*$"), 1),
    "memory_total_kib": (re.compile(r"^MemTotal:\s+(\d{3,15}) kB"), 1024),
    "memory_available_kib": (re.compile(r"^MemAvailable:\s+(\d{3,15}) kB"), 1024),
    "locked_kib": (re.compile(r"^max locked memory\s+\(k(?:bytes|b), -l\) (\d{1,15}|unlimited)\s*$"), 1024),
    "open_files": (re.compile(r"^open files\s+\(-n\) (\d{1,12}|unlimited)\s*$"), 1),
}
_NAMES = {
    "memory_total_bytes": "memory_total_bytes", "memory_total_kib": "memory_total_bytes",
    "memory_available_kib": "memory_available_bytes", "locked_kib": "locked_bytes", "open_files": "open_files",
}  # fmt: skip
_APPLE = re.compile(r"^(?:machdep\.cpu\.brand_string: |\s*(?:Chip|Chipset Model): )(Apple M\d[ A-Za-z]{0,12}?)\s*$")
_CORES = re.compile(r"^\s*Total Number of Cores: (\d{1,3})\s*$")
_SHM = re.compile(r"^(?:shm|tmpfs|none)\s+(\d{1,15})([KMGT]?)i?\b.*\s/dev/shm\s*$")
_LSPCI = re.compile(
    r"(?:3D controller|VGA compatible controller|Processing accelerators)[^:]{0,20}: (NVIDIA|Advanced Micro Devices)"
    r"[^\[]{0,80}(?:\[AMD/ATI\] )?[^\[]{0,40}\[([^\]]{2,60})\]"
)
_UNITS = {"": 2**10, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class _Gatherer:
    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}
        self._lines: dict[str, int] = {}
        self._gpus: list[Event] = []
        self._apple = ""

    def take(self, record: str, where: int) -> None:
        for key, (pattern, unit) in _WHOLE.items():
            if found := pattern.match(record):
                told = float("inf") if found[1] == "unlimited" else int(found[1]) * unit
                self._put(_NAMES[key], told, where)
        if found := _APPLE.match(record):
            self._apple, self._lines["apple"] = found[1].strip(), where
        elif found := _CORES.match(record):
            self._put("gpu_cores", int(found[1]), where)
        elif found := _SHM.match(record):
            self._put("shm_bytes", int(found[1]) * _UNITS[found[2]], where)
        elif (found := _LSPCI.search(record)) and len(self._gpus) < MOST_GPUS:
            vendor = "NVIDIA" if found[1] == "NVIDIA" else "AMD"
            name = f"{vendor} {found[2]}"
            self._gpus.append(gpu_event(where, gpu=record.split(" ", 1)[0][:20], name=name))

    def _put(self, key: str, value: float, where: int) -> None:
        self._facts.setdefault(key, value)
        self._lines.setdefault(key, where)

    def part(self) -> Part | None:
        if self._apple:
            cores = self._facts.get("gpu_cores")
            size = self._facts.get("memory_total_bytes")
            name = self._apple if cores is None else f"{self._apple} ({cores}-core GPU)"
            mib = None if size is None else size / 2**20
            self._gpus = [gpu_event(self._lines["apple"], gpu="0", name=name, memory_total_mib=mib)]
        if not self._facts and not self._gpus:
            return None
        facts = {key: value for key, value in self._facts.items() if value != float("inf")}
        if self._gpus:
            facts |= {"gpus": len(self._gpus), "names": sorted({gpu.values["name"] for gpu in self._gpus})[:8]}
        states = [Event(name=key, line=self._lines[key], values={"value": value}) for key, value in self._facts.items()]
        return Part(kind=KIND, weight=len(states) + len(self._gpus), facts=facts, events=(*self._gpus, *states))


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("hw.memsize", "MemTotal:", "MemAvailable:", "max locked memory", "open files", "brand_string", "Chip",
           "Total Number of Cores", "/dev/shm", "controller", "Processing accelerators"),
)  # fmt: skip
