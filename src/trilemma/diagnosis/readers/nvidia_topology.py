"""``nvidia-smi topo -m``: how each GPU reaches the others and the network cards, and its NUMA node."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "nvidia-smi-topology"
_MOST = 256
_HEAD = re.compile(r"^\s*GPU0\b.*(CPU Affinity|NIC0|mlx\d_|GPU1)")
_COLUMN = re.compile(r"GPU\d{1,3}|(?!GPU)[A-Za-z][\w.-]{1,30}")
_CELL = re.compile(r"^(X|SYS|NODE|PHB|PXB|PIX|PSB|NV\d{1,3}|N/A|OK|CNS|GNS|TNS|NS)$")


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._columns: list[str] = []
        self._rows: list[Event] = []

    def take(self, record: str, where: int) -> None:
        if _HEAD.match(record):
            names = record.split("CPU Affinity")[0].split()
            self.greedy = all(map(_COLUMN.fullmatch, names))
            self._columns = names[:_MOST] if self.greedy else []
        elif self.greedy:
            words = record.split()
            if not words or words[0] == "Legend:" or not words[0].startswith(("GPU", "NIC", "mlx", "rdma")):
                self.greedy = bool(words) and words[0] != "Legend:" and len(self._rows) == 0
            elif re.fullmatch(r"GPU\d{1,3}", words[0]) and len(self._rows) < _MOST:
                self._keep(words, where)

    def _keep(self, words: list[str], where: int) -> None:
        cells = words[1 : 1 + len(self._columns)]
        if len(cells) < len(self._columns) or not all(map(_CELL.match, cells)):
            return
        rest = words[1 + len(self._columns) :]
        numa = next((int(word) for word in rest[1:2] if word.isdigit() and len(word) < 6), None)
        values: dict[str, Any] = {
            "gpu": int(words[0][3:]), "to": dict(zip(self._columns, cells, strict=True)), "numa": numa,
        }  # fmt: skip
        self._rows.append(Event(name="links", line=where, values=values))

    def part(self) -> Part | None:
        if not self._rows:
            return None
        pairs = [
            way for row in self._rows for to, way in row.values["to"].items() if to.startswith("GPU") and way != "X"
        ]
        facts = {
            "gpus": len(self._rows),
            "between_gpus": sorted(set(pairs)),
            "network_cards": sum(not name.startswith("GPU") for name in self._columns),
            "numa_nodes": sorted({row.values["numa"] for row in self._rows if row.values["numa"] is not None}),
        }
        return Part(kind=KIND, weight=5 * len(self._rows), facts=facts, events=tuple(self._rows))


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("GPU0",))
