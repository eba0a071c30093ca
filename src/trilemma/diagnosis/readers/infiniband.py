"""Counters and state of InfiniBand ports as Linux shows them: /sys/class/infiniband/DEVICE/ports/N/…, one value a file.

Such a file holds nothing but its value: what it is of, its path alone says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trilemma.diagnosis.findings import Case, Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "infiniband-port"
_PORT = re.compile(r"(?:^|/)([A-Za-z][\w.-]{0,40})/ports/(\d{1,3})/(?:(?:hw_)?counters/)?([A-Za-z]\w{1,60})$")
_DEVICE = re.compile(
    r"(?:^|/)([A-Za-z]\w{0,20}_\d{1,3})/(board_id|fw_ver|hca_type|node_guid|sys_image_guid|node_desc)$"
)


class _Gatherer:
    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}

    def take(self, record: str, where: str) -> None:
        path = where.replace("\\", "/")
        if found := _PORT.search(path):
            value: Any = int(record) if record.isdigit() and len(record) < 21 else record[:80]
            self._facts = {"device": found[1], "port": int(found[2]), "name": found[3], "value": value}
        elif found := _DEVICE.search(path):
            self._facts = {"device": found[1], "name": found[2], "value": record[:80]}

    def part(self) -> Part | None:
        if not self._facts:
            return None
        return Part(kind=KIND, weight=1, facts=self._facts, events=(Event(name="value", line=1, values=self._facts),))


def ports_in(case: Case) -> Mapping[tuple[str, str, int], Mapping[str, tuple[str, Any]]]:
    """(folder above the device, device, port) → name → (file, value)."""
    found: dict[tuple[str, str, int], dict[str, tuple[str, Any]]] = {}
    for file, part in case.parts(KIND):
        device, port = part.facts["device"], part.facts.get("port")
        if port is not None:
            root = file.rpartition(f"/{device}/")[0]
            found.setdefault((root, device, port), {})[part.facts["name"]] = file, part.facts["value"]
    return found


READER = Reader(kind=KIND, form="value", begin=_Gatherer)
