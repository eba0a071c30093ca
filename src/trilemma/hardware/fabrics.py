"""What carries bytes between accelerators: PCIe, the fast link of a domain, the network of a node, with latencies."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Figure

_FILE = Path(__file__).parent.parent / "data" / "fabrics" / "fabrics.toml"


@cache
def _facts() -> dict[str, Any]:
    from trilemma.hardware.reader import parse_toml, read_text

    return parse_toml(read_text(_FILE), where=_FILE.name)


def _figure(entry: dict[str, Any]) -> Figure:
    return Figure(
        value=float(entry["value"]),
        source=entry["source"],
        as_of=str(entry.get("as_of", "")),
        recalled=bool(entry.get("recalled", False)),
        why=entry.get("why", ""),
        alternatives=tuple(_figure(other) for other in entry.get("alternatives", ())),
    )


def pcie_bytes_per_s(generation: int, lanes: int = 16) -> Figure:
    """One direction of a PCIe slot in bytes/s: lanes × transfer rate × line code. Raises `InputError`."""
    rates = _facts()["pcie"]
    entry = rates.get(f"gen{generation}")
    if entry is None:
        raise InputError(f"PCIe generation {generation} is not known; use one of {', '.join(sorted(rates))}")
    code = entry["payload_bits"] / entry["line_bits"]
    return Figure(value=lanes * entry["transfers_per_s"] * code / 8, source=entry["source"], as_of=str(entry["as_of"]))


def default_node_network(architecture: str, shape: str = "") -> Figure:
    """Network of one accelerator, one way in bytes/s, where its file names none: what nodes of its time have.

    ``shape`` is the node shape of the accelerator; a workstation or laptop has an office network, whatever its card.
    """
    network = _facts()["node_network"]
    if any(shape.startswith(start) for start in network["workstation"]["shapes"]):
        return _figure(network["workstation"])
    for entry in network["by_architecture"]:
        if any(architecture.startswith(start) for start in entry["architectures"]):
            return _figure(entry)
    return _figure(network["otherwise"])


def latency_s(kind: str) -> Figure:
    """Base latency of one hop: ``kind`` is link, pcie or network."""
    return _figure(_facts()["latency"][kind])
