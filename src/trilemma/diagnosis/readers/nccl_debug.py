"""Lines of NCCL and RCCL in logs (NCCL_DEBUG) and of PyTorch's watchdog: version, network, warnings, timeouts."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "nccl-log"
_MOST = 500
_VERSION = re.compile(r"(?:NCCL|RCCL) version (\d[\w.+-]{0,40})")
_NETWORK = re.compile(
    r"NCCL INFO (?:Using network |NET/)(IB|Socket|OFI|AWS Libfabric|Libfabric|FasTrak|gIB|UCX|Slingshot)"
)
_TIMEOUT = re.compile(
    r"(\[Rank (\d{1,6})\].{0,20})?[Ww]atchdog caught collective operation timeout: (WorkNCCL\([^)]{0,300}\))"
)
_WARNING = re.compile(r"NCCL WARN (.{3,300})")
#: How channels go: "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "… [send] via NET/IB/0/GDRDMA".
_VIA = re.compile(r"Channel \d{1,3}(?:/\d{1,3})? ?: .{1,80}? via ([A-Za-z0-9/_()]{2,40})")
_FORCED = re.compile(
    r"(NCCL_(?:IB_DISABLE|P2P_DISABLE|SHM_DISABLE|NET_GDR_LEVEL|ALGO|PROTO|NET_GDR_READ)) set by environment to (\S{1,40})"
)
_NO_RDMA = ("GPU Direct RDMA Disabled", "NET/IB : No device found", "GDR 0")


class _Gatherer:
    def __init__(self) -> None:
        self._lines = 0
        self._facts: dict[str, Any] = {}
        self._networks: dict[str, int] = {}
        self._events: dict[str, Event] = {}
        self._timeouts: set[int] = set()
        self._ways: dict[str, int] = {}
        self._forced: dict[str, str] = {}

    def take(self, record: str, where: int) -> None:
        self._lines += 1
        if "version" in record and (found := _VERSION.search(record)):
            self._facts.setdefault("nccl_version", found[1])
        if " via " in record and (found := _VIA.search(record)):
            self._way(found[1], record, where)
        elif "set by environment" in record and (found := _FORCED.search(record)):
            if len(self._forced) < 32:
                self._forced[found[1]] = found[2]
            self._keep(
                f"forced {found[1]}",
                "forced",
                where,
                {"name": found[1], "value": found[2], "text": record.strip()[:200]},
            )
        elif any(word in record for word in _NO_RDMA):
            self._keep("no rdma", "no-rdma", where, {"text": record.strip()[:200]})
        elif found := _NETWORK.search(record):
            name = found[1].removeprefix("AWS ")
            self._networks[name] = self._networks.get(name, 0) + 1
            self._keep(f"network {name}", "network", where, {"network": name, "text": record.strip()[:200]})
        elif found := _TIMEOUT.search(record):
            rank = int(found[2]) if found[2] else -1
            self._timeouts.add(rank)
            self._keep(f"timeout {rank} {found[3]}", "timeout", where, {"rank": rank, "text": found[3]})
        elif found := _WARNING.search(record):
            self._keep(f"warning {found[1]}", "warning", where, {"text": found[1].strip()})

    def _way(self, via: str, record: str, where: int) -> None:
        """P2P, SHM, or NET with and without GPUDirect RDMA."""
        parts = via.split("/")
        kind = (
            parts[0]
            if parts[0] != "NET"
            else "NET with GPUDirect RDMA"
            if "GDRDMA" in via
            else "NET without GPUDirect RDMA"
        )
        if kind in self._ways or len(self._ways) < 16:
            self._ways[kind] = self._ways.get(kind, 0) + 1
        self._keep(f"way {kind}", "way", where, {"way": kind, "text": record.strip()[:200]})

    def _keep(self, key: str, name: str, line: int, values: dict[str, Any]) -> None:
        if key not in self._events and len(self._events) < _MOST:
            self._events[key] = Event(name=name, line=line, values=values)

    def part(self) -> Part | None:
        if not self._lines:
            return None
        facts = {**self._facts, "nccl_lines": self._lines}
        if self._networks:
            facts["networks"] = dict(self._networks)
        if self._ways:
            facts["channels"] = dict(self._ways)
        if self._forced:
            facts["environment"] = dict(self._forced)
        if self._timeouts:
            facts["timed_out_ranks"] = sorted(rank for rank in self._timeouts if rank >= 0)
        return Part(kind=KIND, weight=0.5 * self._lines, facts=facts, events=tuple(self._events.values()))


READER = Reader(
    kind=KIND,
    form="lines",
    begin=_Gatherer,
    marks=("NCCL INFO", "NCCL WARN", "NCCL version", "RCCL version", "atchdog caught"),
)
