"""HiveD's virtual clusters: cells of the topology that a queue owns, and the configuration that states them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.commands.bounded_yaml import load_all
from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text
from trilemma.simulation.cluster.foreign_files import is_launcher
from trilemma.simulation.cluster.nodes import ClusterNode
from trilemma.simulation.cluster.quotas import QueueQuota


@dataclass(frozen=True, kw_only=True, slots=True)
class CellQuota:
    """``count`` cells of ``queue`` in physical cells of type ``chain``: ``nodes`` whole nodes each (0: ``cards`` of one).

    A pinned cell is the node ``pinned`` alone, for jobs that name it: here nobody's."""

    queue: str
    chain: str
    nodes: int
    cards: int
    count: int = 1
    pinned: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellCluster:
    """The nodes of a HiveD configuration, its queues, and the cells that each owns."""

    nodes: tuple[ClusterNode, ...]
    cells: tuple[CellQuota, ...]

    @property
    def queues(self) -> tuple[QueueQuota, ...]:
        return tuple(QueueQuota(name=name) for name in dict.fromkeys(one.queue for one in self.cells))


@dataclass(frozen=True, kw_only=True, slots=True)
class _CellType:
    nodes: int
    cards: int
    buddies: int
    leaf: str


def states_cells(path: Path) -> bool:
    """Whether a file is a HiveD configuration, not a list of objects of Kubernetes."""
    documents = load_all(read_text(path), name=path.name)
    first = documents[0] if documents else None
    return bool(documents) and not (isinstance(first, Mapping) and "kind" in first) and not is_launcher(first)


def read_cells(path: Path) -> CellCluster:
    """A HiveD configuration (physicalCluster, virtualClusters). Raises `InputError` where a cell type is not stated."""
    (document, *_) = load_all(read_text(path), name=path.name) or [None]
    physical = _mapping(document, "physicalCluster", path)
    stated = _mapping(physical, "cellTypes", path)
    types = {name: _cell_type(name, stated, path, ()) for name in stated}
    nodes: list[ClusterNode] = []
    pins: dict[str, str] = {}
    for at, cell in enumerate(physical.get("physicalCells") or ()):
        kind = str(cell.get("cellType"))
        if kind not in types:
            raise InputError(f"{path.name}: physical cell {at + 1} is of type {shorten(kind)!r}, which is not stated")
        for child in _node_cells(cell, types[kind].nodes):
            address = str(child.get("cellAddress", f"{kind}-{at}"))
            if child.get("pinnedCellId"):
                pins[str(child["pinnedCellId"])] = address
            one = types[kind]
            nodes.append(
                ClusterNode(
                    name=address, gpus=one.cards, model=one.leaf, buddies=one.buddies, rack=f"{kind}-{at}", block=kind
                )
            )
    return CellCluster(nodes=tuple(nodes), cells=tuple(_owned(document, types, pins, path)))


def _owned(document: Any, types: Mapping[str, _CellType], pins: Mapping[str, str], path: Path) -> Iterator[CellQuota]:
    for queue, owned in _mapping(document, "virtualClusters", path).items():
        for cell in owned.get("virtualCells") or ():
            chain, _, inner = str(cell.get("cellType")).partition(".")
            kind = inner.rpartition(".")[2] or chain
            for name in (chain, kind):
                if name not in types:
                    raise InputError(f"{path.name}: {queue} owns cells of type {shorten(name)!r}, which is not stated")
            one = types[kind]
            count = int(cell.get("cellNumber", 1))
            yield CellQuota(queue=str(queue), chain=chain, nodes=one.nodes, cards=one.cards, count=count)
        for cell in owned.get("pinnedCells") or ():
            pin = str(cell.get("pinnedCellId"))
            if pin not in pins:
                raise InputError(
                    f"{path.name}: {queue} owns the pinned cell {shorten(pin)!r}, which no physical cell is"
                )
            yield CellQuota(queue=str(queue), chain="", nodes=1, cards=0, pinned=pins[pin])


def _cell_type(name: str, stated: Mapping[str, Any], path: Path, seen: tuple[str, ...]) -> _CellType:
    """Nodes in a cell of the type (0 below a node), cards of a node or of the cell, cards of the smallest cell with several."""
    if name in seen:
        raise InputError(f"{path.name}: cell types go in a circle ({' → '.join([*seen, name])}); break it")
    if name not in stated:
        return _CellType(nodes=0, cards=1, buddies=0, leaf=name)
    row = stated[name]
    below = _cell_type(str(row.get("childCellType")), stated, path, (*seen, name))
    many = int(row.get("childCellNumber", 1))
    if below.nodes:
        return _CellType(nodes=below.nodes * many, cards=below.cards, buddies=below.buddies, leaf=below.leaf)
    cards = below.cards * many
    node = 1 if row.get("isNodeLevel") else 0
    return _CellType(nodes=node, cards=cards, buddies=below.buddies or (0 if node else cards), leaf=below.leaf)


def _node_cells(cell: Mapping[str, Any], many: int) -> list[Mapping[str, Any]]:
    """The cells of nodes below a physical cell, as they are stated or numbered."""
    children = cell.get("cellChildren")
    if not children:
        return [cell] * max(many, 1)
    found: list[Mapping[str, Any]] = []
    for child in children:
        found += _node_cells(child, 1)
    return found


def _mapping(document: Any, name: str, path: Path) -> Mapping[str, Any]:
    found = document.get(name) if isinstance(document, Mapping) else None
    if not isinstance(found, Mapping):
        raise InputError(
            f"{path.name} has no {name}; give a HiveD configuration with physicalCluster and virtualClusters"
        )
    return found
