"""What the kernel log says of GPUs: which error is the root on each, what only follows from it, what was mended since."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.diagnosis.findings import Case, Event, Evidence, Finding, Role, Severity
from trilemma.diagnosis.readers.kernel_log import KIND
from trilemma.diagnosis.rules import Rule

_GRAVE = ("hardware", "driver", "link")
_SHOWN = 5


@cache
def meanings() -> Mapping[str, Any]:
    return read_data("diagnosis/xid.toml")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """All events of one number on one GPU, in one file."""

    file: str
    gpu: str
    number: int
    events: tuple[Event, ...]

    @property
    def first(self) -> int:
        return min(event.line or 0 for event in self.events)

    @property
    def last(self) -> int:
        return max(int(event.values["last_line"]) for event in self.events)

    @property
    def lines(self) -> int:
        return sum(event.values["count"] for event in self.events)

    @property
    def meaning(self) -> Mapping[str, Any]:
        unknown = {
            "means": "a number that the catalogue of this version does not hold",
            "kind": "driver",
            "action": "none",
        }
        found: Mapping[str, Any] = meanings()["xid"].get(str(self.number), unknown)
        return found

    @property
    def grave(self) -> bool:
        return self.meaning["kind"] in _GRAVE and self.meaning["action"] != "none"

    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(
            Evidence(file=self.file, line=event.line, value=f"Xid {self.number}, GPU {self.gpu}: {event.values['text']}"
                     + (f" ({event.values['count']} times)" if event.values["count"] > 1 else ""))
            for event in self.events[:_SHOWN]
        )  # fmt: skip


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        groups = _groups(file, part.events)
        lost = {event.values["gpu"]: event for event in part.events if event.name == "lost"}
        repairs = [event for event in part.events if event.name in ("boot", "driver-load")]
        for gpu in dict.fromkeys((*(group.gpu for group in groups), *lost)):
            yield from _of_gpu(file, gpu, [one for one in groups if one.gpu == gpu], lost.get(gpu), repairs)
        yield from _of_switches(file, part.events)
        yield from _of_host(file, part.events)


def _groups(file: str, events: tuple[Event, ...]) -> list[_Group]:
    found: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.name == "xid":
            found[event.values["gpu"], event.values["number"]].append(event)
    return [_Group(file=file, gpu=gpu, number=number, events=tuple(those)) for (gpu, number), those in found.items()]


def _of_gpu(file: str, gpu: str, groups: list[_Group], lost: Event | None, repairs: list[Event]) -> Iterator[Finding]:
    graves = sorted((one for one in groups if one.grave), key=lambda one: one.first)
    standing = [one for one in graves if _repaired(one, groups, repairs) is None]
    for group in groups:
        repaired = _repaired(group, groups, repairs)
        if repaired is not None:
            yield _finding(group, "context", "context", f"; {repaired}")
        elif group in standing:
            leads = group is standing[0]
            yield _finding(group, "root" if leads else "cascade", "error")
        elif group.meaning["kind"] == "application":
            follows = bool(standing) and standing[0].first <= group.last
            if follows:
                yield _finding(
                    group, "cascade", "context", f"; it stands beside Xid {standing[0].number} on the same GPU"
                )
            else:
                yield _finding(group, "root", "warning" if group.number == 43 else "error")
        else:
            others = [one.number for one in groups if one is not group and one.meaning["kind"] != "information"]
            follows = group.meaning["kind"] == "cleanup" and bool(others)
            after = f"; it follows Xid {', '.join(map(str, others[:4]))}" if follows else ""
            yield _finding(group, "cascade" if follows else "context", "context", after)
    if lost is not None and not any(group.number == 79 for group in groups):
        yield _lost(file, gpu, lost, [event for event in repairs if (event.line or 0) > lost.values["last_line"]])


def _repaired(group: _Group, groups: list[_Group], repairs: list[Event]) -> str | None:
    """What came after the last of these events and ended them, in words."""
    by = meanings()["repaired_by"].get(str(group.number))
    for other in groups:
        if other.last <= group.last:
            continue
        if by is not None and other.number == by:
            return f"Xid {by} later says that this is over"
        if other.number == 154 and group.grave and "(None)" in _newest(other).values["text"].rpartition(" to ")[2]:
            return "Xid 154 later says that the GPU needs no recovery any more"
    if group.meaning["kind"] in ("hardware", "driver", "link", "application") and group.meaning["action"] != "service":
        for event in repairs:
            if (event.line or 0) > group.last:
                how = "the machine booted" if event.name == "boot" else "the driver was loaded anew"
                return f"{how} after it (line {event.line}) and it has not come back"
    return None


def _newest(group: _Group) -> Event:
    return max(group.events, key=lambda event: int(event.values["last_line"]))


def _finding(group: _Group, role: Role, severity: Severity, more: str = "") -> Finding:
    processes = sorted({event.values["process"] for event in group.events if "process" in event.values})
    by = f" (processes {', '.join(processes[:4])})" if processes else ""
    times = f", {group.lines} lines of {len(group.events)} distinct events" if group.lines > 1 else ""
    action = group.meaning["action"] if severity != "context" else "none"
    return Finding(
        id=f"gpu.xid-{group.number}",
        role=role,
        severity=severity,
        claim=f"GPU {group.gpu}: Xid {group.number}, {group.meaning['means']}{times}{by}{more}",
        evidence=group.evidence(),
        observed=f"Xid {group.number} on GPU {group.gpu}",
        expected="no Xid" if severity != "context" else None,
        confidence="established",
        fix=None if action == "none" else meanings()["actions"][action],
        predicted_effect="programs on this GPU fail or hang until then" if role == "root" and group.grave else None,
    )


def _lost(file: str, gpu: str, event: Event, repairs: list[Event]) -> Finding:
    back = f"; the machine or its driver started anew after it (line {repairs[0].line})" if repairs else ""
    return Finding(
        id="gpu.lost",
        role="context" if repairs else "root",
        severity="context" if repairs else "error",
        claim=f"GPU {gpu} has fallen off the bus: it no longer answers over PCIe, and no Xid says so{back}",
        evidence=(Evidence(file=file, line=event.line, value=event.values["text"]),),
        expected="every GPU answers",
        observed=f"GPU {gpu} lost",
        confidence="established",
        fix=None if repairs else meanings()["actions"]["reboot"],
    )


def _of_switches(file: str, events: tuple[Event, ...]) -> Iterator[Finding]:
    found: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.name == "sxid":
            found[event.values["gpu"], event.values["number"]].append(event)
    for (switch, number), those in found.items():
        fatal = any(event.values["fatal"] for event in those)
        lines = sum(event.values["count"] for event in those)
        yield Finding(
            id=f"switch.sxid-{number}",
            role="root" if fatal else "context",
            severity="error" if fatal else "context",
            claim=f"NVSwitch {switch}: SXid {number}, {'fatal' if fatal else 'not fatal'}, {lines} lines: "
            f"{those[0].values['text'][:160]}",
            evidence=tuple(Evidence(file=file, line=one.line, value=one.values["text"]) for one in those[:_SHOWN]),
            observed=f"SXid {number} on switch {switch}",
            confidence="established",
            fix="reset all GPUs and switches and restart the fabric manager; if it comes back, replace the baseboard"
            if fatal else None,
        )  # fmt: skip


def _of_host(file: str, events: tuple[Event, ...]) -> Iterator[Finding]:
    for event in events:
        evidence = (
            Evidence(file=file, line=event.line, value=event.values.get("text") or event.values.get("process", "")),
        )
        times = event.values["count"]
        if event.name == "segfault" and "nccl" in event.values["library"]:
            yield Finding(
                id="host.nccl-segfault", role="symptom", severity="error", evidence=evidence, confidence="supported",
                claim=f"{event.values['process']} crashed in {event.values['library']}, {times} times",
                observed=f"segmentation fault in {event.values['library']}",
                fix="update NCCL; look at the ranks' logs for the call that crashed (NCCL_DEBUG=INFO)",
            )  # fmt: skip
        elif event.name == "peermem":
            yield Finding(
                id="host.peermem", role="context", severity="context", evidence=evidence, confidence="supported",
                claim=f"nvidia-peermem met an invalid context {times} times: a process with GPUDirect RDMA buffers ended",
            )  # fmt: skip
        elif event.name == "host-out-of-memory":
            yield Finding(
                id="host.out-of-memory", role="root", severity="error", evidence=evidence, confidence="established",
                claim="the kernel killed a process because the host's memory was full",
                observed=event.values["text"],
                fix="give the job more host memory, or less to hold there: fewer data-loader workers, smaller pinned buffers, "
                "no optimizer offload",
            )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
