"""NCCL's topology files (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): what hangs on which processor, at which PCIe speed."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from trilemma.diagnosis.findings import Part
from trilemma.diagnosis.readers import Reader

KIND = "nccl-topology"
_MOST_GRAPHS = 64
#: PCI classes: display and 3D controllers, network and InfiniBand controllers (PCI code and ID assignment).
_GPU, _NETWORK = ("0x0302", "0x0300"), ("0x0200", "0x0207")


class _Gatherer:
    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}

    def take(self, record: Element, where: str) -> None:
        if where == "graphs":
            self._facts = {"graphs": [_graph(one) for one in record.findall("graph")[:_MOST_GRAPHS]]}
        if where != "system":
            return
        devices = list(record.iter("pci"))
        self._facts = {
            "processors": sum(1 for _ in record.iter("cpu")),
            "gpus": sum((one.get("class") or "").startswith(_GPU) for one in devices),
            "network_cards": sum((one.get("class") or "").startswith(_NETWORK) for one in devices),
            "networks": [
                {
                    "name": (one.get("name") or "")[:40],
                    "speed_mb_s": (one.get("speed") or "")[:20],
                    "gdr": one.get("gdr") == "1",
                }
                for one in list(record.iter("net"))[:64]
            ],
            "link_speeds": sorted({f"{one.get('link_speed')} x{one.get('link_width')}"[:60] for one in devices})[:16],
        }

    def part(self) -> Part | None:
        return Part(kind=KIND, weight=1000, facts=self._facts) if self._facts else None


def _graph(graph: Element) -> dict[str, Any]:
    """A graph that NCCL found (NCCL_GRAPH_DUMP_FILE): its channels, speed, and the worst link inside and between nodes."""
    names = ("pattern", "nchannels", "speedintra", "speedinter", "typeintra", "typeinter")
    return {name: (graph.get(name) or "")[:20] for name in names}


READER = Reader(kind=KIND, form="xml", begin=_Gatherer)
