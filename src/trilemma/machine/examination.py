"""A machine examined: one check an area, each ``ok``, ``fault``, ``note`` or ``not seen``, with what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.columns import column
from trilemma.diagnosis.findings import Finding
from trilemma.diagnosis.judging import Diagnosis, judge_readings
from trilemma.machine.machine import SeenMachine
from trilemma.machine.probes import Unseen
from trilemma.quantities import counted

State = Literal["ok", "fault", "note", "not seen"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One area: its state and, in words, what was seen of it."""

    area: str
    state: State
    seen: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """Every check, and the findings behind those that are not well, the gravest first."""

    schema: str = "trilemma/doctor@1"
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...] = field(metadata=column(keep="empty"))
    unseen: tuple[Unseen, ...] = ()
    recorded: bool = False

    @property
    def healthy(self) -> bool:
        """No fault; what was not seen is no fault."""
        return all(check.state != "fault" for check in self.checks)


def examine(machine: SeenMachine) -> Examination:
    """Every area that the outputs of a machine's tools tell of."""
    diagnosis = judge_readings(machine.readings)
    checks = []
    for area, prefixes, seen in _AREAS:
        found = [one for one in diagnosis.findings if one.id.startswith(prefixes)]
        told = seen(machine, diagnosis)
        checks.append(Check(area=area, state=_state(found, told), seen=told or f"{_NEEDED[area]} it"))
    known = tuple(prefix for _, prefixes, _ in _AREAS for prefix in prefixes)
    others = [one for one in diagnosis.findings if not one.id.startswith(known)]
    if others:
        checks.append(Check(area="other records", state=_state(others, "read"), seen=f"{len(others)} findings"))
    return Examination(
        checks=tuple(checks), findings=diagnosis.findings, unseen=machine.unseen, recorded=machine.recorded
    )


def _state(found: Sequence[Finding], told: str) -> State:
    if any(one.severity != "context" for one in found):
        return "fault"
    if found:
        return "note"
    return "ok" if told else "not seen"


def _cards(machine: SeenMachine, _: Diagnosis) -> str:
    return ", ".join(
        f"{number} x {card.name}" + ("" if card.part is not None else f" ({card.why})")
        for card, number in machine.kinds()
    )


def _driver(machine: SeenMachine, _: Diagnosis) -> str:
    versions = [machine.driver] if machine.driver else []
    for key, words in (("cuda_version", "CUDA up to"), ("rocm_version", "ROCm")):
        told = next((one.facts[key] for one in machine.readings if isinstance(one.facts.get(key), str)), None)
        versions += [f"{words} {told}"] if told else []
    return ", ".join(versions)


def _formats(machine: SeenMachine, _: Diagnosis) -> str:
    told = []
    for part in {card.part.id: card.part for card, _ in machine.kinds() if card.part is not None}.values():
        flavour = " (FNUZ coding of fp8)" if part.fp8_flavour == "fnuz" else ""
        capability = "" if part.compute_capability is None else f", compute capability {part.compute_capability:g}"
        told.append(f"{part.name} multiplies {', '.join(part.hardware_formats)}{flavour}{capability}")
    return "; ".join(told)


def _links(machine: SeenMachine, _: Diagnosis) -> str:
    for reading in machine.readings:
        if isinstance(found := reading.facts.get("between_gpus"), list):
            return f"between GPUs: {', '.join(found)}" if found else "one GPU"
        if isinstance(links := reading.facts.get("links"), int):
            return f"{links} NVLinks, {reading.facts.get('inactive_links', 0)} down"
    return ""


def _numa(machine: SeenMachine, _: Diagnosis) -> str:
    for reading in machine.readings:
        nodes = reading.facts.get("numa_nodes")
        if isinstance(nodes, list):
            return f"GPUs on node {', '.join(map(str, nodes))}" if nodes else "no node is stated"
    return ""


def _values(machine: SeenMachine, *keys: str) -> list[list[Any]]:
    """Of every GPU in every record what the keys say, where one says anything."""
    rows = []
    for reading in machine.readings:
        for part in reading.parts:
            for event in part.events:
                if event.name == "gpu" and "slowed_by" in event.values:
                    row = [event.values[key] for key in keys]
                    rows += [row] if any(one is not None for one in row) else []
    return rows


def _lanes(machine: SeenMachine, _: Diagnosis) -> str:
    rows = _values(machine, "link_width", "link_width_most", "link_generation_most")
    shown = {
        f"x{width or most:g} of x{most:g}" + (f", generation {generation:g}" if generation else "")
        for width, most, generation in rows
        if most
    }
    return "; ".join(sorted(shown)[:4])


def _clocks(machine: SeenMachine, _: Diagnosis) -> str:
    rows = _values(machine, "power_limit_w", "power_default_w", "clock_most_mhz")
    shown = {
        f"power limit {limit:g} W" + (f" of {usual:g} W" if usual else "") + (f", up to {clock:g} MHz" if clock else "")
        for limit, usual, clock in rows
        if limit
    }
    return "; ".join(sorted(shown)[:4])


def _errors(machine: SeenMachine, _: Diagnosis) -> str:
    modes = {mode for (mode,) in _values(machine, "ecc") if mode is not None}
    if not modes:
        return ""
    return "ECC on" if modes == {True} else "ECC off" if modes == {False} else "ECC on some GPUs alone"


def _limits(machine: SeenMachine, _: Diagnosis) -> str:
    facts: dict[str, Any] = {}
    for reading in machine.readings:
        facts |= {
            key: reading.facts[key] for key in ("shm_bytes", "locked_bytes", "open_files") if key in reading.facts
        }
    told = [f"/dev/shm {facts['shm_bytes'] / 2**30:,.1f} GiB"] if "shm_bytes" in facts else []
    if "locked_bytes" in facts:
        told.append(f"locked memory {facts['locked_bytes'] / 2**20:,.0f} MiB")
    return ", ".join(told)


def _memory(machine: SeenMachine, _: Diagnosis) -> str:
    return "" if machine.host_memory_bytes is None else f"{machine.host_memory_bytes / 2**30:,.1f} GiB"


def _kernel(machine: SeenMachine, _: Diagnosis) -> str:
    kept = [one for one in machine.readings if one.kind == "kernel-log"]
    return counted(len(kept), "log") if kept else ""


def _versions(machine: SeenMachine, _: Diagnosis) -> str:
    for reading in machine.readings:
        versions = reading.facts.get("versions")
        if isinstance(versions, dict) and versions:
            return ", ".join(f"{name} {version}" for name, version in sorted(versions.items())[:12])
    return ""


#: Area, the beginnings of the ids of its findings, and what was seen of it.
_AREAS: tuple[tuple[str, tuple[str, ...], Callable[[SeenMachine, Diagnosis], str]], ...] = (
    ("cards", ("gpu.memory-short", "gpu.not-listed", "gpu.recovery"), _cards),
    ("driver", ("version.driver",), _driver),
    ("formats", (), _formats),
    ("links", ("links.", "gpu.links-down"), _links),
    ("PCIe", ("gpu.pcie",), _lanes),
    ("NUMA", (), _numa),
    ("clocks and power", ("gpu.clocks", "gpu.power"), _clocks),
    ("memory errors", ("gpu.row", "gpu.uncorrected", "gpu.ecc"), _errors),
    ("kernel log", ("gpu.xid", "gpu.sxid", "gpu.lost", "host.nccl", "host.peermem", "host.out-of-memory"), _kernel),
    ("limits", ("host.shared", "host.locked"), _limits),
    ("host memory", ("host.memory",), _memory),
    ("versions", ("version.",), _versions),
)
_NEEDED = {
    "cards": "nvidia-smi, rocm-smi, npu-smi or sysctl tells",
    "driver": "nvidia-smi or rocm-smi tells",
    "formats": "the catalogue, where it has the card, tells",
    "links": "nvidia-smi topo -m or nvlink --status tells",
    "PCIe": "nvidia-smi -q tells",
    "NUMA": "nvidia-smi topo -m tells",
    "clocks and power": "nvidia-smi -q tells",
    "memory errors": "nvidia-smi -q tells",
    "kernel log": "dmesg, given as a file, tells",
    "limits": "ulimit -a and df /dev/shm, in the container, tell",
    "host memory": "/proc/meminfo tells",
    "versions": "pip freeze tells",
}
