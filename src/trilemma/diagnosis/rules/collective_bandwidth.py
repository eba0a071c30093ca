"""Bus bandwidth of nccl-tests beside what the fabric of these GPUs has.

Inside a link domain large messages reach 82 % (ring) to 107 % (NVLS) of one GPU's link: 370 and 480 of 450 GB/s on eight H100
(sjeaugey, NVIDIA/nccl-tests issue 212). Between nodes a ring reaches 80 to 100 % of the node's network, and the trees of two
nodes can show up to twice that (NVIDIA/nccl-tests issue 156).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.nccl_tests import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster

_LINK = (0.82, 1.07)
_NETWORK = (0.8, 1.0)
_TREES = 2.0
#: A message is large where its time is bandwidth alone.
_LARGE_BYTES = 256 << 20
#: Below this share of the least that is expected something is wrong.
_ENOUGH = 0.8


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for file, part in case.parts(KIND):
        wrong = next((row for row in part.events if row.values["wrong"]), None)
        if wrong is not None:
            yield Finding(
                id="collectives.wrong-results",
                role="root",
                severity="error",
                claim=f"collectives returned {part.facts['wrong_results']} wrong values",
                evidence=(Evidence(file=file, line=wrong.line, value=f"{wrong.values['bytes']} bytes: wrong"),),
                expected="0 wrong",
                observed=f"{part.facts['wrong_results']} wrong",
                confidence="established",
                fix="look for Xid, ECC and link errors on these GPUs; run again on halves of the machine until one GPU is left",
            )
        yield from _bandwidth(file, part, case.network_bytes_per_s)


def _bandwidth(file: str, part: Part, network: float | None) -> Iterator[Finding | Missing]:
    facts = part.facts
    if facts["largest_bytes"] < _LARGE_BYTES:
        yield Missing(what=f"nccl-tests of messages up to 1 GiB (-e 1G): {file} ends at {facts['largest_bytes']} bytes")
        return
    if len(facts.get("gpus", ())) != 1 or not facts.get("ranks"):
        yield Missing(
            what=f"the rank lines of the header of {file} (GPU and host of each): what its fabric should reach"
        )
        return
    try:
        cluster = Cluster.of(find(facts["gpus"][0]), facts["ranks"], nodes=facts["nodes"])
        cluster = replace(cluster, network_bytes_per_s=network or cluster.network_bytes_per_s)
    except InputError as error:
        yield Missing(what=f"the fabric of {facts['gpus'][0]}: {error}")
        return
    low, high, why, sure = _expected_gb_s(cluster, stated=network is not None)
    observed = facts["peak_busbw_gb_s"]
    if observed >= _ENOUGH * low:
        return
    row = max(part.events, key=lambda one: int(one.values["bytes"]))
    yield Finding(
        id="collectives.slow",
        role="symptom",
        severity="warning",
        claim=f"{facts['collective']} over {facts['ranks']} {cluster.accelerator.name} reaches {observed:.4g} GB/s of bus "
        f"bandwidth, {observed / low:.0%} of the least that {why} gives",
        evidence=(
            Evidence(file=file, line=row.line, value=f"{row.values['bytes']} bytes: {row.values['busbw_gb_s']} GB/s"),
        ),
        expected=f"{low:.4g} – {high:.4g} GB/s",
        observed=f"{observed:.4g} GB/s",
        confidence="supported" if sure else "hypothesis",
        fix="NCCL_DEBUG=INFO: is it NET/Socket instead of IB or OFI, GPUDirect RDMA off, fewer channels than network cards; "
        "nvidia-smi topo -m and nvlink -s: are all links up",
        predicted_effect=f"collectives {low / observed:.3g} times as fast",
    )


def _expected_gb_s(cluster: Cluster, *, stated: bool) -> tuple[float, float, str, bool]:
    """Least and most bus bandwidth of large messages, over what, and whether the fabric is sure to be there."""
    path: Any = cluster.path(cluster.gpus)
    rate = path.bytes_per_s.value / 1e9
    if path.kind == "link":
        return _LINK[0] * rate, _LINK[1] * rate, f"{path.name} ({rate:.4g} GB/s one way)", True
    if path.kind == "pcie":
        return 0.5 * _NETWORK[0] * rate, rate, f"{path.name} ({rate:.4g} GB/s one way)", False
    node = rate * cluster.gpus_per_node
    most = _TREES if cluster.nodes == 2 else _NETWORK[1]
    return (
        _NETWORK[0] * node,
        most * node,
        f"a network of {node:.4g} GB/s a node, {'as stated' if stated else 'usual for this GPU'},",
        stated,
    )


RULE = Rule(needs=(KIND,), judge=_judge)
