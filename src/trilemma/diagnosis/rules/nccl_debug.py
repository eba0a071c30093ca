"""What NCCL's own lines say: TCP where a fast network should be, timeouts of the watchdog, warnings."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.flight_recorder import KIND as DUMPS
from trilemma.diagnosis.readers.nccl_debug import KIND
from trilemma.diagnosis.rules import Rule


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for file, part in case.parts(KIND):
        networks = part.facts.get("networks", {})
        if set(networks) == {"Socket"}:
            event = next(one for one in part.events if one.name == "network")
            yield Finding(
                id="collectives.over-tcp",
                role="root",
                severity="warning",
                claim="NCCL talks over TCP sockets: it found neither InfiniBand, RoCE nor a plugin for the network",
                evidence=(Evidence(file=file, line=event.line, value=event.values["text"]),),
                expected="NET/IB or a plugin (OFI, FasTrak, UCX)",
                observed="NET/Socket",
                confidence="supported",
                fix="give the container the devices (--device /dev/infiniband, --cap-add IPC_LOCK, host network or the RDMA "
                "device plugin) and the network's plugin; NCCL_IB_DISABLE must not be 1, NCCL_IB_HCA must name cards that exist",
                predicted_effect="a fifth of the bus bandwidth was seen over TCP (areal-project/AReaL issue 639: 5 of 25 GB/s); "
                "no matter where all GPUs stand in one node",
            )
        yield from _ways(file, part)
        timeouts = [one for one in part.events if one.name == "timeout"]
        if timeouts:
            ranks = part.facts["timed_out_ranks"]
            yield Finding(
                id="hang.timeout",
                role="symptom",
                severity="error",
                claim=f"a collective did not end in time on {len(ranks) or len(timeouts)} ranks; they are those that waited, "
                "not the one that stayed away",
                evidence=tuple(Evidence(file=file, line=one.line, value=one.values["text"]) for one in timeouts[:5]),
                observed=timeouts[0].values["text"],
                confidence="established",
                fix="find who stayed away: flight-recorder dumps of all ranks, Xid in the kernel logs, the last line of each "
                "rank's log",
            )
            if not case.has(DUMPS):
                yield Missing(what="flight-recorder dumps (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1): "
                              "which rank stayed away")  # fmt: skip
        warnings = [one for one in part.events if one.name == "warning"]
        if warnings and not timeouts:
            yield Finding(
                id="collectives.warning",
                role="symptom",
                severity="warning",
                claim=f"NCCL warns: {warnings[0].values['text'][:160]}",
                evidence=tuple(Evidence(file=file, line=one.line, value=one.values["text"]) for one in warnings[:5]),
                confidence="supported",
            )


def _ways(file: str, part: Part) -> Iterator[Finding]:
    """Channels that go a slower way than the hardware has, and what the environment forces."""
    ways = part.facts.get("channels", {})

    def proof(name: str, key: str, value: str) -> tuple[Evidence, ...]:
        those = (one for one in part.events if one.name == name and one.values.get(key) == value)
        return tuple(Evidence(file=file, line=one.line, value=one.values["text"]) for one in those)

    staged = "NET without GPUDirect RDMA"
    fast = set(part.facts.get("networks", {})) & {"IB", "OFI", "Libfabric", "FasTrak", "gIB", "UCX"}
    if ways.get(staged) and fast and not ways.get("NET with GPUDirect RDMA"):
        yield Finding(
            id="collectives.without-gpudirect",
            role="root",
            severity="warning",
            claim=f"all {ways[staged]} channels between nodes go through the host's memory: GPUDirect RDMA is not used",
            evidence=(*proof("way", "way", staged), *(Evidence(file=file, line=one.line, value=one.values["text"])
                                                      for one in part.events if one.name == "no-rdma")),
            expected="NET/…/GDRDMA",
            observed=staged,
            confidence="supported",
            fix="load nvidia-peermem (or DMA-BUF), put GPU and card under one PCIe switch, NCCL_NET_GDR_LEVEL; ACS off",
            predicted_effect="up to twice the bandwidth between nodes, where PCIe is crossed once in place of twice",
        )  # fmt: skip
    if ways.get("SHM") and not ways.get("P2P"):
        yield Finding(
            id="collectives.through-host-memory",
            role="root",
            severity="warning",
            claim=f"GPUs of one machine talk through the host's memory ({ways['SHM']} channels over SHM, none peer to peer)",
            evidence=proof("way", "way", "SHM"),
            expected="P2P over NVLink or PCIe",
            observed="SHM",
            confidence="supported",
            fix="nvidia-smi topo -p2p r; ACS or a virtual machine may forbid it, NCCL_P2P_DISABLE must not be 1; else pipeline "
            "parallelism in place of tensor parallelism on these cards",
        )
    for name, told in _FORCED.items():
        value = part.facts.get("environment", {}).get(name)
        if value is not None and (told is None or value.rstrip(".") == told):
            yield Finding(
                id="collectives.forced",
                role="root" if told else "context",
                severity="warning" if told else "context",
                claim=f"the environment sets {name}={value}: NCCL may not choose by itself",
                evidence=proof("forced", "name", name),
                observed=f"{name}={value}",
                expected="not set" if told else None,
                confidence="established",
                fix=f"unset {name} unless a test asks for it" if told else None,
            )


#: Variables that take a way from NCCL when they hold this value; None: any value is worth a word.
_FORCED: dict[str, str | None] = {
    "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_ALGO": None, "NCCL_PROTO": None,
}  # fmt: skip

RULE = Rule(needs=(KIND,), judge=_judge)
