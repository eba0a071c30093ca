"""Paths between the GPUs of a machine: NVLinks that some pairs have and others lack, or that a card of this kind should have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.gpus import gpus_in, part_of
from trilemma.diagnosis.readers.nvidia_topology import KIND
from trilemma.diagnosis.rules import Rule

#: Paths over PCIe, the slowest last (legend of nvidia-smi topo -m).
_PCIE = ("PIX", "PXB", "PHB", "NODE", "SYS")


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        pairs = {
            (row.values["gpu"], int(to[3:])): (way, row.line)
            for row in part.events
            for to, way in row.values["to"].items()
            if to.startswith("GPU") and int(to[3:]) > row.values["gpu"]
        }
        kinds = Counter(way for way, _ in pairs.values())
        linked = {way: number for way, number in kinds.items() if way.startswith("NV")}
        if linked and len(kinds) > 1 and not _is_in_islands(pairs):
            yield _uneven(file, pairs, linked)
        elif not linked and any(way in _PCIE for way in kinds) and (name := _should_be_linked(case)):
            yield _unlinked(file, pairs, name)


def _is_in_islands(pairs: dict[tuple[int, int], tuple[str, int | None]]) -> bool:
    """Whether every GPU has the same number of linked neighbours: bridges of two, or a hybrid cube, are made so."""
    near: Counter[int] = Counter({gpu: 0 for pair in pairs for gpu in pair})
    strengths: set[str] = set()
    for (one, other), (way, _) in pairs.items():
        if way.startswith("NV"):
            near[one] += 1
            near[other] += 1
            strengths.add(way)
    return len(set(near.values())) == 1 and (len(strengths) == 1 or set(strengths) == {"NV1", "NV2"})


def _uneven(file: str, pairs: dict[tuple[int, int], tuple[str, int | None]], linked: dict[str, int]) -> Finding:
    best = max(linked, key=lambda way: int(way[2:]))
    worse = [(pair, way, line) for pair, (way, line) in pairs.items() if way != best]
    gpus = Counter(gpu for pair, _, _ in worse for gpu in pair)
    suspects = [str(gpu) for gpu, number in gpus.most_common(2) if number > len(worse) / 3]
    return Finding(
        id="links.uneven",
        role="root",
        severity="warning",
        claim=f"{len(worse)} of {len(pairs)} pairs of GPUs have fewer NVLinks than the others"
        + (f"; GPU {' and '.join(suspects)} stand out" if suspects else ""),
        evidence=tuple(
            Evidence(file=file, line=line, value=f"GPU {pair[0]} to {pair[1]}: {way}") for pair, way, line in worse[:8]
        ),
        expected=f"{best} between every pair",
        observed=", ".join(sorted({way for _, way, _ in worse})),
        confidence="supported",
        fix="nvidia-smi nvlink --status for these GPUs, the kernel log (Xid 74), the fabric manager",
    )


def _should_be_linked(case: Case) -> str | None:
    """The name of the cards, where the catalogue knows that such cards stand in one domain of links."""
    for _, _, gpu in gpus_in(case):
        part = part_of(gpu)
        if part is not None and part.link is not None and part.link.domain > 2:
            return str(gpu.values["name"])
    return None


def _unlinked(file: str, pairs: dict[tuple[int, int], tuple[str, int | None]], name: str) -> Finding:
    worst = max((way for way, _ in pairs.values() if way in _PCIE), key=_PCIE.index)
    shown = list(pairs.items())[:4]
    return Finding(
        id="links.absent",
        role="root",
        severity="error",
        claim=f"no NVLink joins the GPUs of this machine, and {name} is sold with links between all",
        evidence=tuple(
            Evidence(file=file, line=line, value=f"GPU {pair[0]} to {pair[1]}: {way}") for pair, (way, line) in shown
        ),
        expected="NVLink between every pair",
        observed=f"PCIe ({worst})",
        confidence="supported",
        fix="start nvidia-fabricmanager of the driver's version; in a virtual machine pass the switches through",
    )


RULE = Rule(needs=(KIND,), judge=_judge)
