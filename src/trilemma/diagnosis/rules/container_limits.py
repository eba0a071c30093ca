"""Limits of the container that collectives and loaders need: shared memory and locked memory."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.gpus import gpus_in
from trilemma.diagnosis.readers.host_state import KIND
from trilemma.diagnosis.rules import Rule

#: What Docker gives a container is 64 MiB; NCCL's troubleshooting page and vLLM's Docker page ask for 1 GiB or --ipc=host.
_SHM_LEAST = 1 << 30
#: RDMA registers memory; NCCL's troubleshooting page asks for an unlimited lock (ulimit -l).
_LOCKED_LEAST = 1 << 30


def _judge(case: Case) -> Iterator[Finding]:
    gpus = len({(file, gpu.values["gpu"]) for file, _, gpu in gpus_in(case)})
    for file, part in case.parts(KIND):
        for event in part.events:
            if event.name == "shm_bytes" and event.values["value"] < _SHM_LEAST and gpus:
                several = gpus > 1
                yield Finding(
                    id="host.shared-memory",
                    role="root",
                    severity="warning" if several else "context",
                    claim=f"/dev/shm has {event.values['value'] / 2**20:,.0f} MiB: collectives between processes and workers of"
                    " data loaders stop with a bus error or hang",
                    evidence=(Evidence(file=file, line=event.line, value=f"{event.values['value'] / 2**20:,.0f} MiB"),),
                    expected="1 GiB or more",
                    observed=f"{event.values['value'] / 2**20:,.0f} MiB",
                    confidence="established",
                    fix="docker run --ipc=host or --shm-size=8g; in Kubernetes an emptyDir of medium Memory at /dev/shm",
                )
            elif event.name == "locked_bytes" and event.values["value"] < _LOCKED_LEAST and gpus:
                yield Finding(
                    id="host.locked-memory",
                    role="context",
                    severity="context",
                    claim=f"{event.values['value'] / 2**10:,.0f} KiB may be locked: RDMA between nodes cannot register memory",
                    evidence=(Evidence(file=file, line=event.line, value=f"{event.values['value'] / 2**10:,.0f} KiB"),),
                    expected="unlimited",
                    observed=f"{event.values['value'] / 2**10:,.0f} KiB",
                    confidence="established",
                    fix="docker run --ulimit memlock=-1; LimitMEMLOCK=infinity of the service",
                )


RULE = Rule(needs=(KIND,), judge=_judge)
