"""``lspci``: the GPUs, switches and network cards of a machine."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Part
from trilemma.diagnosis.readers import Reader

KIND = "lspci"
_MOST = 4096
_DEVICE = re.compile(
    r"^((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d) ([A-Z][\w /-]{2,60}?)(?: \[([0-9a-f]{4})\])?: (.{2,200})"
)
#: Codes of a class, and words where lspci printed none (PCI code and ID assignment).
_CLASSES = {
    "gpus": (("0302", "0300", "1200"), ("3D controller", "VGA compatible controller", "Processing accelerators")),
    "infiniband_cards": (("0207",), ("Infiniband controller",)),
    "ethernet_cards": (("0200",), ("Ethernet controller",)),
    "drives": (("0108",), ("Non-Volatile memory controller",)),
    "bridges": (("0680",), ("Bridge",)),
}
_MAKERS = ("NVIDIA", "Advanced Micro Devices", "AMD")


class _Gatherer:
    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._lines = 0

    def take(self, record: str, where: int) -> None:  # noqa: ARG002 - a machine's list has no line to point at
        found = _DEVICE.match(record)
        if found is None or self._lines >= _MOST:
            return
        self._lines += 1
        kind = next((name for name, (codes, words) in _CLASSES.items() if found[3] in codes or found[2] in words), None)
        maker = any(one in found[4] for one in _MAKERS)
        if kind is None or (kind in ("gpus", "bridges") and not maker):
            return
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if kind == "gpus":
            name = found[4].partition(" [10")[0][:80]
            self._names[name] = self._names.get(name, 0) + 1

    def part(self) -> Part | None:
        if not self._lines:
            return None
        facts: dict[str, Any] = {"devices": self._lines, **self._counts}
        if "bridges" in facts:
            facts["switches"] = facts.pop("bridges")
        if self._names:
            facts["gpu_names"] = self._names
        return Part(kind=KIND, weight=self._lines, facts=facts)


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("3D controller", "VGA compatible controller", "Infiniband controller", "Ethernet controller",
           "Non-Volatile memory controller", "Bridge [0680]", "Processing accelerators"),
)  # fmt: skip
