"""What jobs run on: nodes with their cards, and the domains of the network that they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trilemma.errors import InputError, shorten

#: Thousandths of a card: what a share of one is counted in.
WHOLE = 1000
#: Domains of a node from the smallest to the largest. A coarser one holds whole finer ones.
LEVELS = ("nvlink", "leaf", "rack", "block")
MOST_CARDS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterNode:
    """One machine: ``gpus`` cards of one ``model``; CPU and memory bound jobs that state theirs.

    ``sockets`` share the cards evenly; where pods are ``one_socket`` (kubelet's single-numa-node) each pod's cards come from one.
    ``buddies`` cards stand nearest to each other (0: all alike). A node that ``is_down`` was out of service when it was listed.
    """

    name: str
    gpus: int
    model: str = ""
    cpu_milli: int = 0
    memory_mib: int = 0
    sockets: int = 1
    one_socket: bool = False
    buddies: int = 0
    nvlink: str = ""
    leaf: str = ""
    rack: str = ""
    block: str = ""
    is_down: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.gpus <= MOST_CARDS:
            raise InputError(f"node {shorten(self.name)} has {self.gpus} GPUs; give 0 to {MOST_CARDS}")
        if self.sockets < 1 or self.gpus % self.sockets:
            raise InputError(f"node {shorten(self.name)}: {self.sockets} sockets do not share {self.gpus} GPUs evenly")

    @property
    def gpu_milli(self) -> int:
        return self.gpus * WHOLE

    def domain(self, level: str) -> tuple[str, ...]:
        """The domain of this node at ``level``, with the coarser ones that hold it: names need be unique in those only."""
        return tuple(getattr(self, one) for one in LEVELS[LEVELS.index(level) :])


def uniform_nodes(many: int, gpus: int, *, model: str = "", per_rack: int = 0, per_block: int = 0) -> list[ClusterNode]:
    """``many`` nodes alike; ``per_rack`` nodes share a rack and ``per_block`` racks a block, where they are above zero."""
    nodes = [ClusterNode(name=f"node-{at:04}", gpus=gpus, model=model) for at in range(many)]
    if per_rack:
        nodes = [replace(one, rack=f"rack-{at // per_rack}") for at, one in enumerate(nodes)]
    if per_rack and per_block:
        nodes = [replace(one, block=f"block-{at // (per_rack * per_block)}") for at, one in enumerate(nodes)]
    return nodes


def levels_of(nodes: Sequence[ClusterNode]) -> tuple[str, ...]:
    """The levels that any node states, from the smallest to the largest."""
    return tuple(level for level in LEVELS if any(getattr(one, level) for one in nodes))
