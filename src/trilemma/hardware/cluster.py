"""Accelerators wired into nodes and nodes into a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trilemma.errors import InputError, PlanWarning
from trilemma.hardware.accelerator import Accelerator, Figure
from trilemma.intervals import Interval
from trilemma.quantities import Numbers

if TYPE_CHECKING:
    from trilemma.hardware.hosts import Host


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPath:
    """What a group of accelerators talks over: ``bytes_per_s`` one way for each, ``latency_s`` of one hop.

    ``kind`` is "none" (one accelerator), "link" (inside the domain of the fast link), "pcie" (one node without a link that
    reaches the whole group) or "network" (across nodes or domains).
    """

    kind: str
    name: str
    bytes_per_s: Figure
    latency_s: Figure


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Cluster:
    """``gpus`` accelerators of one kind, ``gpus_per_node`` to a node; ``network_bytes_per_s`` is what one node has of
    the network, one way, all its ports together.

    ``oversubscription``: how many times the edge of the network is wider than its core, through which nodes meet.
    ``host`` is the machine around those of a node, None where nobody stated it (`around` assumes one), ``host_memory_bytes``
    how much memory it has. ``cards`` name each
    accelerator where their kinds differ: then ``accelerator`` is the first, and only an engine that gives cards layers in
    turn can use them. ``power_cap_w`` is what each accelerator may draw where its owner allows less than its limit,
    ``storage_bytes_per_s`` what a node reads of the storage where weights lie.
    """

    accelerator: Accelerator
    gpus: int = 1
    gpus_per_node: int = 8
    network_bytes_per_s: float | None = None
    host: Host | None = None
    host_memory_bytes: float | None = None
    cards: tuple[Accelerator, ...] = ()
    oversubscription: float = 1.0
    power_cap_w: float | None = None
    storage_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.cards and (len(self.cards) != self.gpus or self.cards[0] != self.accelerator):
            raise InputError(f"{len(self.cards)} cards are named for {self.gpus} GPUs; name each one")
        if not 1 <= self.gpus <= 2**20:
            raise InputError(f"{self.gpus} GPUs is out of range; give a whole number of at least 1")
        if not 1 <= self.gpus_per_node <= 2**20:
            raise InputError(f"`gpus_per_node` {self.gpus_per_node} is out of range; give a whole number of at least 1")
        if self.host_memory_bytes is not None and not 0 < self.host_memory_bytes < 1e15:
            raise InputError(f"{self.host_memory_bytes} bytes of host memory is out of range; give a number above 0")
        if self.network_bytes_per_s is not None and not 0 < self.network_bytes_per_s < 1e15:
            raise InputError(f"{self.network_bytes_per_s} bytes/s between nodes is out of range; give a number above 0")
        if self.storage_bytes_per_s is not None and not 1e6 <= self.storage_bytes_per_s <= 1e15:
            raise InputError(
                f"`storage` {self.storage_bytes_per_s:g} bytes/s is out of range; give what a node reads, such as 2GB/s"
            )
        limit = self.accelerator.tdp_w
        if self.power_cap_w is not None and limit is None:
            raise InputError(f"`power_cap` {self.power_cap_w:g} W: the limit of {self.accelerator.name} is not known")
        if self.power_cap_w is not None and limit and not 0.3 * limit.value <= self.power_cap_w <= limit.value:
            raise InputError(
                f"`power_cap` {self.power_cap_w:g} W is out of range for {self.accelerator.name}; give"
                f" {0.3 * limit.value:g} to {limit.value:g} W of one GPU"
            )
        if not 1 <= self.oversubscription <= 1000:
            raise InputError(f"oversubscription {self.oversubscription} is out of range; give a number of at least 1")

    def __repr__(self) -> str:
        return f"<Cluster: {self.gpus} x {self.name[:120]}, {self.gpus_per_node} to a node>"

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        gpus: int = 1,
        *,
        nodes: int | None = None,
        gpus_per_node: int | None = None,
        network_bytes_per_s: float | None = None,
    ) -> Cluster:
        """A cluster in the shape that its accelerator is usually sold in, unless nodes or GPUs per node are stated.

        Raises `InputError` where ``nodes`` and ``gpus_per_node`` contradict ``gpus``.
        """
        if nodes is not None:
            if nodes < 1 or gpus % nodes:
                raise InputError(f"`nodes` {nodes} does not divide {gpus} GPUs; give a divisor of {gpus}")
            if gpus_per_node not in (None, gpus // nodes):
                raise InputError(f"`nodes` {nodes} and `gpus_per_node` {gpus_per_node} do not make {gpus} GPUs")
            gpus_per_node = gpus // nodes
        return cls(
            accelerator=accelerator,
            gpus=gpus,
            gpus_per_node=gpus_per_node or accelerator.gpus_per_node,
            network_bytes_per_s=network_bytes_per_s,
        )

    @property
    def every(self) -> tuple[Accelerator, ...]:
        """Each accelerator by itself."""
        return self.cards or (self.accelerator,) * self.gpus

    @property
    def name(self) -> str:
        """The accelerators in words; kinds that differ stand side by side."""
        return f"({' + '.join(card.name for card in self.cards)})" if self.cards else self.accelerator.name

    @property
    def usd_per_hour(self) -> Interval | None:
        """Of all accelerators together; None where the price of one is not known."""
        prices = [card.usd_per_hour for card in self.every]
        if not self.cards:
            return prices[0].scaled(self.gpus) if prices[0] else None
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        return Interval(
            value=sum(price.value for price in known),
            low=sum(price.low for price in known),
            high=sum(price.high for price in known),
        )

    @property
    def watts(self) -> float | None:
        """Of all accelerators at their limit, or at the cap that was set; None where that of one is not known."""
        if self.power_cap_w is not None:
            return self.power_cap_w * self.gpus
        limits = [card.tdp_w for card in (self.cards or (self.accelerator,))]
        if any(limit is None for limit in limits):
            return None
        total = sum(limit.value for limit in limits if limit is not None)
        return total if self.cards else total * self.gpus

    @property
    def around(self) -> Host:
        """The host as stated, else the one assumed for such an accelerator."""
        from trilemma.hardware.hosts import host_of

        return self.host or host_of(self.accelerator)

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    @property
    def domain(self) -> int:
        """Accelerators that the fast link joins: 1 without a link; a rack's domain spans nodes, a board's does not.

        A link whose domain is a board ends at the node where nodes are smaller than the board.
        """
        link = self.accelerator.link
        if link is None:
            return 1
        return link.domain if link.domain > self.accelerator.gpus_per_node else min(link.domain, self.gpus_per_node)

    @property
    def usual_domain(self) -> int:
        """The part of the domain that jobs usually get: 64 of the 72 of a rack, else all of it."""
        link = self.accelerator.link
        return min(self.domain, (link.domain_in_common_use if link else 0) or self.domain)

    @property
    def network(self) -> Figure:
        """Network of one accelerator, one way, in bytes/s: as stated, as its nodes have it, or as nodes of its time do.

        What an oversubscribed core leaves of it where all nodes talk at once, as collectives do.
        """
        edge = self._edge
        if self.oversubscription == 1:
            return edge
        source = f"{edge.source}; over {self.oversubscription:g} where the core is oversubscribed"
        return Figure(value=edge.value / self.oversubscription, source=source)

    @property
    def _edge(self) -> Figure:
        if self.network_bytes_per_s is not None:
            return Figure(value=self.network_bytes_per_s / self.gpus_per_node, source="given")
        return self.usual_network

    @property
    def usual_network(self) -> Figure:
        """Network of one accelerator, one way, in bytes/s, as nodes with it usually have it, whatever this one has."""
        from trilemma.hardware.fabrics import default_node_network

        return self.accelerator.node_bytes_per_s or default_node_network(
            self.accelerator.architecture, self.accelerator.node_shape
        )

    @property
    def inside_node(self) -> Figure:
        """Bytes/s one way between accelerators of one node that the fast link does not join: PCIe, else the network."""
        return self.accelerator.pcie_bytes_per_s or self._edge

    def link_bytes_per_s(self, group_size: Numbers) -> Any:
        """Bytes/s one way that each member of a group of ``group_size`` neighbours has to the others of its group.

        The slowest step counts: the fast link inside its domain, PCIe beyond it inside a node, the network across nodes.
        Infinite for a group of one. Number in, number out; array in, array of its shape out.
        """
        size = np.asarray(group_size)
        rate = np.where(size <= self.gpus_per_node, self.inside_node.value, self.network.value)
        link = self.accelerator.link
        if link is not None:
            rate = np.where(size <= self.domain, link.bytes_per_s.value, rate)
        rate = np.where(size <= 1, np.inf, rate)
        return rate if isinstance(group_size, np.ndarray) else float(rate)

    def path(self, group_size: int) -> GroupPath:
        """What a group of ``group_size`` neighbours talks over, with the source of each figure."""
        from trilemma.hardware.fabrics import latency_s

        link = self.accelerator.link
        if group_size <= 1:
            nothing = Figure(value=float("inf"), source="one accelerator talks to none")
            return GroupPath(
                kind="none", name="", bytes_per_s=nothing, latency_s=Figure(value=0.0, source=nothing.source)
            )
        if link is not None and group_size <= self.domain:
            return GroupPath(kind="link", name=link.name, bytes_per_s=link.bytes_per_s, latency_s=latency_s("link"))
        if group_size <= self.gpus_per_node and self.accelerator.pcie_bytes_per_s is not None:
            return GroupPath(kind="pcie", name="PCIe", bytes_per_s=self.inside_node, latency_s=latency_s("pcie"))
        return GroupPath(kind="network", name="network", bytes_per_s=self.network, latency_s=latency_s("network"))

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """What was assumed about the wiring: ``network-assumed`` where nodes are several and none states its network."""
        stated = self.network_bytes_per_s is not None or self.accelerator.node_bytes_per_s is not None
        if self.nodes == 1 or stated or self.gpus <= self.domain:
            return ()
        text = f"network of {self.network.value / 1e9:g} GB/s a GPU assumed between nodes ({self.network.source})"
        return (PlanWarning(code="network-assumed", message=text),)
