"""``nvidia-smi nvlink --status``: the speed of every link of every GPU."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "nvidia-smi-nvlink"
_MOST = 65_536
_GPU = re.compile(r"^\s*GPU (\d{1,4}): (.{1,80}?) \(UUID")
_LINK = re.compile(r"^\s+Link (\d{1,3}): (?:([0-9.]{1,12}) GB/s|<?(inactive)>?)")


class _Gatherer:
    def __init__(self) -> None:
        self._gpu: tuple[int, str] | None = None
        self._links: list[Event] = []

    def take(self, record: str, where: int) -> None:
        if found := _GPU.match(record):
            self._gpu = int(found[1]), found[2]
        elif self._gpu and (found := _LINK.match(record)) and len(self._links) < _MOST:
            speed = None if found[3] else float(found[2].rstrip(".") or 0) if found[2].count(".") < 2 else 0.0
            values = {"gpu": self._gpu[0], "name": self._gpu[1], "link": int(found[1]), "gb_s": speed}
            self._links.append(Event(name="link", line=where, values=values))

    def part(self) -> Part | None:
        if not self._links:
            return None
        by_gpu: dict[int, float] = {}
        for link in self._links:
            by_gpu[link.values["gpu"]] = by_gpu.get(link.values["gpu"], 0.0) + (link.values["gb_s"] or 0.0)
        facts: dict[str, Any] = {
            "gpus": len(by_gpu),
            "links": len(self._links),
            "inactive_links": sum(link.values["gb_s"] is None for link in self._links),
            "gb_s_by_gpu": {str(gpu): round(speed, 3) for gpu, speed in list(by_gpu.items())[:64]},
        }
        return Part(kind=KIND, weight=10 * len(self._links), facts=facts, events=tuple(self._links))


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("(UUID: GPU-", " Link "))
