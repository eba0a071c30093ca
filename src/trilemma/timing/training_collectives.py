"""Bytes that training collectives move over the fast link and over the network, per rank, by where a group's ranks lie.

Ranks are laid out tensor first, then context, data and pipeline (Megatron-LM's default order tp-cp-ep-dp-pp), so a group is
every ``stride``-th rank. Inside a link domain the fast link carries it. Beyond, each domain's members share the crossing:
hierarchical algorithms and rails send every byte once into each domain, through all its network ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.quantities import Numbers

Volume = tuple[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """What training groups talk over: one-way bytes/s of one accelerator inside a domain and beyond, and domain size.

    ``near_ranks`` share the near wire: the link domain (the 64 of an NVL72 rack that jobs get), or the node where PCIe is
    all there is. ``oversubscription`` divides the far rate where a network's core is narrower than its edge.
    """

    near_bytes_per_s: float
    far_bytes_per_s: float
    near_ranks: int
    linked: bool

    @classmethod
    def of(cls, cluster: Cluster, *, oversubscription: float = 1.0) -> Fabric:
        link = cluster.accelerator.link
        linked = link is not None and cluster.domain > 1
        near_ranks = cluster.usual_domain if linked else cluster.gpus_per_node
        bridged = linked and near_ranks < min(cluster.gpus_per_node, cluster.gpus)
        far = cluster.inside_node.value if bridged else cluster.network.value / oversubscription
        near = link.bytes_per_s.value if link is not None and linked else cluster.inside_node.value
        return cls(near_bytes_per_s=near, far_bytes_per_s=far, near_ranks=max(near_ranks, 1), linked=linked)


def members_near(ranks: Numbers, stride: Numbers, near_ranks: int) -> Any:
    """How many of ``ranks``, one every ``stride``, share one domain of ``near_ranks``."""
    return np.clip(np.floor(near_ranks / np.asarray(stride, dtype=float)), 1.0, np.asarray(ranks, dtype=float))


def gathered(n_bytes: Numbers, ranks: Numbers, stride: Numbers, near_ranks: int) -> Volume:
    """(near, far) bytes that a rank takes in to hold the whole of ``n_bytes``, of which it has ``1/ranks``; as many to
    reduce and scatter. An all-reduce is both.

    Near: ``(n − 1)/n`` of the whole (Patarasuk and Yuan 2009). Far: what lies outside the domain, ``(g − 1)/g`` of the
    whole for ``g`` domains, divided among the members that share its ports.
    """
    count = np.asarray(ranks, dtype=float)
    local = members_near(count, stride, near_ranks)
    groups = np.ceil(count / local)
    near = np.where(local > 1, n_bytes * (count - 1) / count, 0.0)
    far = np.where(groups > 1, n_bytes * (groups - 1) / groups / local, 0.0)
    return near, far


def exchanged(n_bytes: Numbers, ranks: Numbers, stride: Numbers, near_ranks: int, *, copies: Numbers = 1.0) -> Volume:
    """(near, far) bytes that a rank sends when ``n_bytes`` go evenly to all ``ranks`` (all-to-all).

    With ``copies`` > 1 a token goes to that many ranks; it crosses once into each domain that holds any of them and is
    passed on there (DeepSeek-V3 report, section 3.2.2): expected domains ``g·(1 − (1 − 1/g)^copies)`` under even routing.
    """
    count = np.asarray(ranks, dtype=float)
    local = members_near(count, stride, near_ranks)
    groups = np.ceil(count / local)
    near = np.where(local > 1, n_bytes * (local - 1) / local, 0.0)
    reached = groups * (1 - (1 - 1 / groups) ** np.asarray(copies, dtype=float))
    far = np.where(groups > 1, n_bytes / copies * reached * (groups - 1) / groups, 0.0)
    return near, far


def passed_on(n_bytes: Numbers, stride: Numbers, gpus: Numbers, near_ranks: int) -> Volume:
    """(near, far) bytes to hand ``n_bytes`` to the neighbour ``stride`` ranks away.

    Of neighbours that far apart, ``stride / near_ranks`` pairs lie in two domains; the average counts, since every stage
    waits for every other over a step.
    """
    whole = np.asarray(n_bytes, dtype=float)
    crossing = np.where(np.asarray(gpus) > near_ranks, np.clip(np.asarray(stride) / near_ranks, 0.0, 1.0), 0.0)
    return whole * (1 - crossing), whole * crossing
