"""What NCCL's own lines say: TCP where a fast network should be, timeouts of the watchdog, warnings."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing
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


RULE = Rule(needs=(KIND,), judge=_judge)
