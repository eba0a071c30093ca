"""NCCL's topology files (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): what hangs on which processor, at which PCIe speed."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from trilemma.diagnosis.findings import Part
from trilemma.diagnosis.readers import Reader

KIND = "nccl-topology"
#: PCI classes: display and 3D controllers, network and InfiniBand controllers (PCI code and ID assignment).
_GPU, _NETWORK = ("0x0302", "0x0300"), ("0x0200", "0x0207")


class _Gatherer:
    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}

    def take(self, record: Element, where: str) -> None:
        if where != "system":
            return
        devices = list(record.iter("pci"))
        self._facts = {
            "processors": sum(1 for _ in record.iter("cpu")),
            "gpus": sum((one.get("class") or "").startswith(_GPU) for one in devices),
            "network_cards": sum((one.get("class") or "").startswith(_NETWORK) for one in devices),
            "link_speeds": sorted({f"{one.get('link_speed')} x{one.get('link_width')}"[:60] for one in devices})[:16],
        }

    def part(self) -> Part | None:
        return Part(kind=KIND, weight=1000, facts=self._facts) if self._facts else None


READER = Reader(kind=KIND, form="xml", begin=_Gatherer)
