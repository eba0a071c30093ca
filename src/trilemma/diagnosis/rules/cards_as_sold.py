"""Cards beside what the catalogue says of them: memory that is missing, power that is held back, cards that the driver lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.diagnosis.findings import Case, Event, Evidence, Finding
from trilemma.diagnosis.gpus import KINDS, gpus_in, part_of
from trilemma.diagnosis.rules import Rule

#: A total below this share of the driver's own figure for the part is less than the card was sold with.
_MEMORY_SHARE = 0.97
#: A limit below this share of the default (or of the rated power) holds the card back.
_POWER_SHARE = 0.95
_GIB_IN_MIB = 1024


def _judge(case: Case) -> Iterator[Finding]:
    short: dict[str, list[tuple[str, Event, float]]] = {}
    capped: dict[tuple[str, float, float], list[tuple[str, Event]]] = {}
    for file, _, gpu in gpus_in(case):
        whole = _whole_mib(gpu)
        if whole and gpu.values["memory_total_mib"] < _MEMORY_SHARE * whole and not gpu.values["mig"]:
            short.setdefault(gpu.values["name"], []).append((file, gpu, whole))
        limit, usual = gpu.values["power_limit_w"], _usual_watts(gpu)
        if limit and usual and limit < _POWER_SHARE * usual:
            capped.setdefault((gpu.values["name"], limit, usual), []).append((file, gpu))
    for name, found in short.items():
        yield _short(name, found)
    for (name, limit, usual), capped_cards in capped.items():
        yield _capped(name, limit, usual, capped_cards)
    yield from _lost(case)


def _whole_mib(gpu: Event) -> float | None:
    part = part_of(gpu)
    if part is None or part.nvml_total_bytes is None or gpu.values["memory_total_mib"] is None or part.unified_memory:
        return None
    return min(part.nvml_total_bytes.claims) / 2**20


def _usual_watts(gpu: Event) -> float | None:
    if gpu.values["power_default_w"]:
        return float(gpu.values["power_default_w"])
    part = part_of(gpu)
    return None if part is None or part.tdp_w is None else min(part.tdp_w.claims)


def _short(name: str, found: list[tuple[str, Event, float]]) -> Finding:
    _, gpu, whole = found[0]
    shown, sold = (f"{mib / _GIB_IN_MIB:.1f} GiB" for mib in (gpu.values["memory_total_mib"], whole))
    proofs = (Evidence(file=file, line=one.line, value=f"GPU {one.values['gpu']}") for file, one, _ in found[:8])
    return Finding(
        id="gpu.memory-short",
        role="root",
        severity="warning",
        claim=f"{name} shows {shown} of {sold}",
        evidence=tuple(proofs),
        expected=sold,
        observed=shown,
        confidence="supported",
        fix="a slice (MIG, vGPU) or retired memory: nvidia-smi -q -d PAGE_RETIREMENT,ROW_REMAPPER; else it is another card",
    )


def _capped(name: str, limit: float, usual: float, found: list[tuple[str, Event]]) -> Finding:
    stated = bool(found[0][1].values["power_default_w"])
    told = "its default" if stated else "the power that it is sold with"
    number = len({one.values["gpu"] for _, one in found})
    proofs = (
        Evidence(file=file, line=one.line, value=f"GPU {one.values['gpu']}: {limit:g} W") for file, one in found[:8]
    )
    return Finding(
        id="gpu.power-cap",
        role="context",  # most caps are set on purpose
        severity="context",
        claim=f"power of {number} x {name} is limited to {limit:g} W, {limit / usual:.0%} of {told}",
        evidence=tuple(proofs),
        expected=f"{usual:g} W",
        observed=f"{limit:g} W",
        confidence="established" if stated else "supported",
        fix=f"nvidia-smi -pl {usual:g}, where power and cooling allow it",
        predicted_effect="matrix products, prefill and training gain; decode, which waits for memory, hardly",
    )


def _lost(case: Case) -> Iterator[Finding]:
    """Cards on the PCI bus that the driver's tool does not list."""
    on_bus = _counted(case, "host-state")
    listed = max(
        (_counted(case, kind) for kind in KINDS if kind != "host-state"), key=lambda one: one[0], default=(0, None)
    )
    if listed[0] and on_bus[0] > listed[0] and on_bus[1] and listed[1]:
        yield Finding(
            id="gpu.not-listed",
            role="root",
            severity="error",
            claim=f"{on_bus[0] - listed[0]} of {on_bus[0]} GPUs on the PCI bus are not listed by the driver",
            evidence=(on_bus[1], listed[1]),
            expected=f"{on_bus[0]} GPUs",
            observed=f"{listed[0]} GPUs",
            confidence="established",
            fix="the kernel log (Xid 79, fallen off the bus); CUDA_VISIBLE_DEVICES and the container's devices; reset or reboot",
        )


def _counted(case: Case, kind: str) -> tuple[int, Evidence | None]:
    best: tuple[int, Evidence | None] = (0, None)
    for file, part in case.parts(kind):
        gpus: Any = part.facts.get("gpus", 0)
        if isinstance(gpus, int) and gpus > best[0]:
            best = gpus, Evidence(file=file, value=f"{gpus} GPUs")
    return best


RULE = Rule(needs=KINDS, judge=_judge)
