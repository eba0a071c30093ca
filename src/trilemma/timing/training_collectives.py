"""Bytes that training collectives move over the fast link and over the network, per rank, by where a group's ranks lie.

Ranks are laid out tensor first, then context, data and pipeline (Megatron-LM's default order tp-cp-ep-dp-pp), so a group is
every ``stride``-th rank. Inside a link domain the fast link carries it. Beyond, each domain's members share the crossing:
hierarchical algorithms and rails send every byte once into each domain, through all its network ports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.quantities import Numbers

Volume = tuple[Any, Any]
#: Dispatchers whose kernels send a token once into each domain and pass it on there; all-to-all sends every copy.
ONCE_A_DOMAIN = ("deepep", "hybridep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """What training groups talk over: one-way bytes/s of one accelerator inside a domain and beyond, and domain size.

    ``near_ranks`` share the near wire: the link domain (the 64 of an NVL72 rack that jobs get), or the node where PCIe is
    all there is. ``usual_far_bytes_per_s`` is what measured runs of such cards had beyond the domain (0: no less than this).
    """

    near_bytes_per_s: float
    far_bytes_per_s: float
    near_ranks: int
    linked: bool
    usual_far_bytes_per_s: float = 0.0

    @classmethod
    def of(cls, cluster: Cluster) -> Fabric:
        link = cluster.accelerator.link
        linked = link is not None and cluster.domain > 1
        near_ranks = cluster.usual_domain if linked else cluster.gpus_per_node
        bridged = linked and near_ranks < min(cluster.gpus_per_node, cluster.gpus)
        far = cluster.inside_node.value if bridged else cluster.network.value
        near = link.bytes_per_s.value if link is not None and linked else cluster.inside_node.value
        within = bridged or cluster.gpus <= cluster.gpus_per_node
        usual = 0.0 if within else cluster.usual_network.value
        return cls(
            near_bytes_per_s=near, far_bytes_per_s=far, near_ranks=max(near_ranks, 1), linked=linked,
            usual_far_bytes_per_s=usual if far < usual else 0.0,
        )  # fmt: skip


def members_near(ranks: Numbers, stride: Numbers, near_ranks: int) -> Any:
    """How many of ``ranks``, one every ``stride``, share one domain of ``near_ranks``.

    A count of ranks, numbers or arrays that broadcast; by definition of contiguous ranks.
    """
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


def exchanged(
    n_bytes: Numbers,
    ranks: Numbers,
    stride: Numbers,
    near_ranks: int,
    *,
    copies: int = 1,
    limit: tuple[int, int] = (1, 1),
) -> Volume:
    """(near, far) bytes that a rank sends when ``n_bytes`` go evenly to all ``ranks`` (all-to-all).

    With ``copies`` > 1 a token goes to that many experts; it crosses once into each domain that holds any of them and goes
    once to each rank there (DeepSeek-V3 report, section 3.2.2; deepseek-ai/DeepEP csrc/kernels/intranode.cu,
    ``is_token_in_rank``). ``limit``: the router's groups and how many of them a token may reach (`domains_reached`).
    """
    count = np.asarray(ranks, dtype=float)
    local = members_near(count, stride, near_ranks)
    groups = np.ceil(count / local)
    each = n_bytes / copies
    near = np.where(local > 1, each * _reached(count, copies, limit) * (local - 1) / local, 0.0)
    far = np.where(groups > 1, each * _reached(groups, copies, limit) * (groups - 1) / groups, 0.0)
    return near, far


def _reached(domains: Any, copies: int, limit: tuple[int, int]) -> Any:
    """`domains_reached` of an array of counts; of one copy each is sent."""
    if copies == 1:
        return 1.0
    distinct, place = np.unique(domains, return_inverse=True)
    return np.array([domains_reached(int(one), copies, limit) for one in distinct])[place].reshape(np.shape(domains))


@lru_cache(maxsize=1024)
def domains_reached(domains: int, copies: int, limit: tuple[int, int] = (1, 1)) -> float:
    """Domains, of those over which experts lie in order, that hold any of a token's ``copies`` experts, on average.

    Even routing over ``m`` domains reaches ``m·(1 − (1 − 1/m)^copies)``. A router that takes experts from ``t`` of ``n``
    groups (DeepSeek-V3, section 2.1.2: at most four nodes a token) has only the domains of these: ``t·domains/n`` of them
    where a group lies on several. Where a domain holds several groups, the number of them that are chosen is
    hypergeometric, between whole numbers in proportion.
    """
    groups, chosen = limit
    if domains >= groups:
        open_to = max(domains * chosen / groups, 1.0)
        return open_to * (1 - (1 - 1 / open_to) ** copies)
    held = groups / domains
    part = held - math.floor(held)
    missed = (1 - part) * _missed(math.floor(held), copies, limit) + part * _missed(math.ceil(held), copies, limit)
    return domains * (1 - missed)


def _missed(held: int, copies: int, limit: tuple[int, int]) -> float:
    """The chance that a domain with ``held`` of the router's groups gets none of a token's experts."""
    groups, chosen = limit
    ways = math.comb(groups, chosen)
    return sum(
        math.comb(held, here) * math.comb(groups - held, chosen - here) / ways * (1 - here / chosen) ** copies
        for here in range(min(held, chosen) + 1)
    )


def passed_on(n_bytes: Numbers, stride: Numbers, gpus: Numbers, near_ranks: int) -> Volume:
    """(near, far) bytes to hand ``n_bytes`` to the neighbour ``stride`` ranks away.

    Of neighbours that far apart, ``stride / near_ranks`` pairs lie in two domains; the average counts, since every stage
    waits for every other over a step.
    """
    whole = np.asarray(n_bytes, dtype=float)
    crossing = np.where(np.asarray(gpus) > near_ranks, np.clip(np.asarray(stride) / near_ranks, 0.0, 1.0), 0.0)
    return whole * (1 - crossing), whole * crossing
