"""Seconds of collectives over a cluster's links: latency plus volume over bandwidth, by how far the group reaches.

Groups are contiguous ranks. Inside a link domain the fast link carries them; inside a node without one, PCIe; beyond a
node, the network, hierarchically: reduce inside the node first, so that only a share crosses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.quantities import Numbers
from trilemma.timing.coefficients import Coefficients


@dataclass(frozen=True, kw_only=True, slots=True)
class Wires:
    """What a cluster's ranks talk over: one-way bytes per second of one accelerator as reached, and latencies in seconds.

    ``local_ranks`` share the local wire: the link domain, or the node where PCIe is all there is. ``peer_to_peer`` says
    whether kernels read a neighbour's memory over it at full speed, so that one-shot all-reduce pays, up to
    ``most_shot_bytes``; what is more goes at ``ring_bytes_per_s``. Beyond it groups
    cross the far wire: the network, or PCIe where a bridge joins only a part of the node.
    """

    local_bytes_per_s: Numbers
    ring_bytes_per_s: Numbers
    local_latency_s: Numbers
    local_ranks: int
    one_shot_latency_s: Numbers
    two_shot_latency_s: Numbers
    most_shot_bytes: Numbers
    peer_to_peer: bool
    network_bytes_per_s: Numbers
    network_latency_s: Numbers
    network_reduce_latency_s: Numbers


def wires(cluster: Cluster, coefficients: Coefficients) -> Wires:
    """The wires of ``cluster`` under the shares of their datasheet figures that collectives reach."""
    link = cluster.accelerator.link
    pcie_bytes_per_s = cluster.inside_node.value * coefficients.pcie_share
    bridged = link is not None and cluster.domain < min(cluster.gpus_per_node, cluster.gpus)
    far_bytes_per_s = pcie_bytes_per_s if bridged else cluster.network.value * coefficients.network_share
    return Wires(
        local_bytes_per_s=link.bytes_per_s.value * coefficients.link_share if link is not None else pcie_bytes_per_s,
        ring_bytes_per_s=link.bytes_per_s.value * coefficients.ring_share if link is not None else pcie_bytes_per_s,
        local_latency_s=coefficients.ring_latency_s if link is not None else coefficients.pcie_latency_s,
        local_ranks=cluster.domain if link is not None else cluster.gpus_per_node,
        one_shot_latency_s=coefficients.one_shot_latency_s,
        two_shot_latency_s=coefficients.two_shot_latency_s,
        most_shot_bytes=coefficients.most_shot_bytes,
        peer_to_peer=link is not None,
        network_bytes_per_s=far_bytes_per_s,
        network_latency_s=coefficients.pcie_latency_s if bridged else coefficients.network_latency_s,
        network_reduce_latency_s=coefficients.pcie_latency_s if bridged else coefficients.network_reduce_latency_s,
    )


def all_reduce_s(n_bytes: Numbers, ranks: Numbers, over: Wires) -> Any:
    """Seconds to sum ``n_bytes`` over ``ranks``, the result everywhere; the fastest of three algorithms inside a domain.

    Ring: latency + ``2(n − 1)/n`` volumes (Patarasuk and Yuan 2009). One-shot: every rank reads all others at once,
    ``n − 1`` volumes but one hop; two-shot: each sums its part of all and reads the others' sums, as many volumes as a ring and
    two hops (vLLM ``csrc/custom_all_reduce.cuh``). What is beyond the largest message of such kernels passes at the links' own
    rate. Arrays broadcast; one rank costs nothing.
    """
    ranks = np.asarray(ranks, dtype=float)
    local = np.minimum(ranks, over.local_ranks)
    volumes = 2 * (local - 1) / local
    shot_bytes = np.minimum(n_bytes, over.most_shot_bytes) if over.peer_to_peer else n_bytes
    moved_s = volumes * shot_bytes / over.local_bytes_per_s
    inside = over.local_latency_s + moved_s
    if over.peer_to_peer:
        one_shot = over.one_shot_latency_s + (local - 1) * shot_bytes / over.local_bytes_per_s
        shot = np.minimum(np.minimum(inside, one_shot), over.two_shot_latency_s + moved_s)
        inside = shot + volumes * (n_bytes - shot_bytes) / over.ring_bytes_per_s
    return np.where(local > 1, inside, 0.0) + _crossing(n_bytes / local, ranks / local, over, volumes=2.0)


def all_gather_s(n_bytes: Numbers, ranks: Numbers, over: Wires) -> Any:
    """Seconds until each of ``ranks`` holds the ``n_bytes`` of every other: ``n − 1`` blocks in; as long to scatter sums.

    Numbers or arrays that broadcast. Source of the volume: nccl-tests, doc/PERFORMANCE.md.
    """
    ranks = np.asarray(ranks, dtype=float)
    local = np.minimum(ranks, over.local_ranks)
    inside = over.local_latency_s + (ranks - ranks / local) * n_bytes / over.local_bytes_per_s
    crossing = over.network_latency_s + (ranks / local - 1) * n_bytes / over.network_bytes_per_s
    return np.where(local > 1, inside, 0.0) + np.where(ranks > local, crossing, 0.0)


def point_to_point_s(n_bytes: Numbers, span: Numbers, over: Wires) -> Any:
    """Seconds to hand ``n_bytes`` to the next pipeline stage, when the pipeline spans ``span`` ranks in all.

    Numbers or arrays that broadcast. By definition bytes over the bandwidth of the wire that the pipeline crosses, and
    its latency.
    """
    near = over.local_latency_s + n_bytes / over.local_bytes_per_s
    far = over.network_latency_s + n_bytes / over.network_bytes_per_s
    return np.where(np.asarray(span) > over.local_ranks, np.maximum(near, far), near)


def _crossing(n_bytes: Any, groups: Any, over: Wires, *, volumes: float) -> Any:
    seconds = over.network_reduce_latency_s + volumes * (groups - 1) / groups * n_bytes / over.network_bytes_per_s
    return np.where(groups > 1, seconds, 0.0)
