"""``npu-smi info`` of Huawei's Ascend cards: two lines a chip, the first of the card, the second of its memory.

A card of two dies (Atlas A3, named "Ascend910" alone) is listed as two chips with 64 GiB each, and frameworks see two devices.
"""

from __future__ import annotations

import re

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.gpus import MOST_GPUS, facts_of, gpu_event
from trilemma.diagnosis.readers import Reader

KIND = "npu-smi"
_DIE_MIB = 65536
_VERSION = re.compile(r"^\|\s+npu-smi (\d[\w.]{0,20})")
_CARD = re.compile(r"^\|\s*(\d{1,4})\s+((?:Ascend ?)?(?:310|910)\w{0,8})\s*\|\s*\w{2,12}\s*\|")
_CHIP = re.compile(
    r"^\|\s*(\d{1,4})(?:\s+(\d{1,4}))?\s*\|\s*[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\s*\|"
    r".{0,60}?(\d{1,9})\s*/\s*(\d{1,9})\s*\|\s*$"
)


class _Gatherer:
    def __init__(self) -> None:
        self._gpus: list[Event] = []
        self._driver = self._name = ""

    def take(self, record: str, where: int) -> None:
        if found := _VERSION.match(record):
            self._driver = found[1]
        elif found := _CARD.match(record):
            self._name = found[2]
        elif (found := _CHIP.match(record)) and self._name and len(self._gpus) < MOST_GPUS:
            used, total = float(found[3]), float(found[4])
            name = self._name if self._name.startswith("Ascend") else f"Ascend {self._name}"
            if name == "Ascend910" and found[2] and total == _DIE_MIB:
                name = "Ascend 910C"
            number = found[2] or str(len(self._gpus))
            memory = {"memory_total_mib": total, "memory_free_mib": max(total - used, 0.0)} if total else {}
            self._gpus.append(gpu_event(where, gpu=number, name=name, **memory))
            self._name = ""

    def part(self) -> Part | None:
        if not self._gpus:
            return None
        facts = facts_of(self._gpus, driver_version=self._driver)
        return Part(kind=KIND, weight=20 + 3 * len(self._gpus), facts=facts, events=tuple(self._gpus))


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("| npu-smi", "910", "310", " 0000:"))
