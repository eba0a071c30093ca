"""What people say of the network between nodes: ``10GbE``, ``8x400Gb/s``, ``50GB/s``, ``4xNDR``, for each node, one way."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from trilemma.errors import InputError, shorten
from trilemma.hardware.cluster import Cluster

_RATE = re.compile(
    r"(?:(?P<ports>\d{1,3})\s*[x×*]\s*)?(?P<value>\d{1,7}(?:\.\d{1,6})?)\s*(?P<scale>[GMT])(?P<unit>b/s|bit/s|bps|bE|B/s|Bps|byte/s)",
    re.ASCII,
)
_NAMED = re.compile(r"(?:(?P<ports>\d{1,3})\s*[x×*]\s*)?(?P<name>[A-Za-z]{2,4})", re.ASCII)
_SCALES = {"M": 1e6, "G": 1e9, "T": 1e12}
#: InfiniBand's generations: Gb/s of a port of four lanes (InfiniBand Trade Association, roadmap).
_GENERATIONS = {"qdr": 40.0, "fdr": 56.0, "edr": 100.0, "hdr": 200.0, "ndr": 400.0, "xdr": 800.0}


def parse_network(text: str) -> float:
    """Bytes/s one way between nodes, of one node: ``10GbE`` is 1.25e9, ``8x400Gb/s`` is 4e11. A small b counts bits.

    Raises `InputError` naming the forms.
    """
    shown = text.strip()
    named = _NAMED.fullmatch(shown)
    if named and named.group("name").lower() in _GENERATIONS:
        value = _GENERATIONS[named.group("name").lower()] * 1e9 / 8
        ports = named.group("ports")
    elif match := _RATE.fullmatch(shown):
        value = float(match.group("value")) * _SCALES[match.group("scale")]
        value /= 1 if match.group("unit") in ("B/s", "Bps", "byte/s") else 8
        ports = match.group("ports")
    else:
        raise InputError(
            f"`network` {shorten(text)!r} is not a rate between nodes; give that of one node, such as 10GbE, 8x400Gb/s or"
            " 50GB/s"
        )
    rate = value * int(ports or 1)
    if not 1e6 <= rate <= 1e14:
        raise InputError(f"`network` {shorten(text)!r} is out of range; give the rate of one node, such as 8x400Gb/s")
    return rate


def on_network(cluster: Cluster, network: str | None, oversubscription: float | None) -> Cluster:
    """``cluster`` with the network that its owner states."""
    if oversubscription is not None and not (math.isfinite(oversubscription) and 1 <= oversubscription <= 1000):
        raise InputError(
            f"`oversubscription` {oversubscription:g} is out of range; give how many times the edge is wider than the core,"
            " such as 2"
        )
    return replace(
        cluster,
        network_bytes_per_s=cluster.network_bytes_per_s if network is None else parse_network(network),
        oversubscription=cluster.oversubscription if oversubscription is None else oversubscription,
    )
