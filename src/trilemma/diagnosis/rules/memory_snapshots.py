"""What a snapshot of the allocator says: memory that is reserved and useless, and who holds the rest.

Reserved beyond allocated above a tenth is worth a remedy; what kind tells which one. Blocks that wait to be freed are held for
another stream (pytorch/torchtitan issue 735: recordStream of tensor-parallel collectives); cached blocks of a stream on which
nothing is allocated any more are lost to the others (NVIDIA/Megatron-LM pull request 6885: 20,964 MiB).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.memory_snapshot import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.quantities import GIB

_OVERHANG, _AWAITING = 0.1, 0.02


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for file, part in case.parts(KIND):
        facts = part.facts
        reserved, rest = facts["reserved_bytes"], facts["unallocated_bytes"]
        if reserved:
            yield from _overhang(file, part, reserved, rest)
        for event in part.events:
            if event.name == "failure":
                yield _failed(file, facts, event.values)
        if not facts["with_stacks"] and reserved:
            yield Missing(
                what=f"stacks in {file}: torch.cuda.memory._record_memory_history() before the run says who allocates"
            )


def _overhang(file: str, part: Part, reserved: int, rest: int) -> Iterator[Finding]:
    facts = part.facts
    proof = (Evidence(file=file, value=f"reserved {_gib(reserved)}, allocated {_gib(facts['allocated_bytes'])}"),)
    awaiting = sum(facts["bytes_by_state"].get(name, 0) for name in ("active_awaiting_free", "active_pending_free"))
    if awaiting > _AWAITING * reserved:
        yield Finding(
            id="memory.awaiting-free", role="root", severity="warning",
            claim=f"{_gib(awaiting)} were freed by the program and wait for another stream: collectives hold on to their inputs",
            evidence=proof, expected="next to none", observed=_gib(awaiting), confidence="supported",
            fix="TORCH_NCCL_AVOID_RECORD_STREAMS=1 (tensor parallel with FSDP2), or a limit of gathers in flight",
            predicted_effect=f"a peak lower by up to {_gib(awaiting)}",
        )  # fmt: skip
    bound = _stream_bound(part)
    if bound > _OVERHANG * reserved / 2:
        yield Finding(
            id="memory.stream-bound-cache", role="root", severity="warning",
            claim=f"{_gib(bound)} are cached for a stream on which nothing is allocated any more: no other stream can use them",
            evidence=proof, expected="cached blocks on streams that are used", observed=_gib(bound), confidence="supported",
            fix="initialise on the current stream instead of a stream of its own, or torch.cuda.empty_cache() after it",
            predicted_effect=f"{_gib(bound)} less reserved, allocated as before",
        )  # fmt: skip
    elif rest > _OVERHANG * reserved:
        on = any("expandable" in str(name) and str(value) not in ("0", "False") for name, value in
                 facts.get("settings", {}).items())  # fmt: skip
        yield Finding(
            id="memory.fragmentation", role="root", severity="warning",
            claim=f"{_gib(rest)} of {_gib(reserved)} reserved are not allocated ({rest / reserved:.1%}), the largest free piece "
            f"is {_gib(facts['largest_unallocated_bytes'])}",
            evidence=proof, expected=f"less than {_OVERHANG:.0%}", observed=f"{rest / reserved:.1%}", confidence="supported",
            fix="fewer sizes of allocation (pad sequences), torch.cuda.empty_cache() between phases" if on
            else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF since 2.9)",
            predicted_effect=f"up to {_gib(rest)} less reserved",
        )  # fmt: skip


def _stream_bound(part: Part) -> int:
    """Cached bytes of streams without a later allocation, where others have some."""
    streams: list[Mapping[str, Any]] = [event.values for event in part.events if event.name == "stream"]
    if not any(one["later_allocations"] for one in streams):
        return 0
    return sum(one["reserved"] - one["allocated"] for one in streams if not one["later_allocations"])


def _failed(file: str, facts: Mapping[str, Any], values: Mapping[str, Any]) -> Finding:
    holders = ", ".join(
        f"{place} {_gib(size)}" for place, size in list(facts.get("allocated_bytes_by_place", {}).items())[:4]
    )
    return Finding(
        id="memory.out-of-memory", role="root", severity="error",
        claim=f"an allocation of {_gib(values['request_bytes'])} failed with {_gib(values['free_bytes'])} free"
        + (f" at {values['place']}" if values["place"] else "")
        + f": {_gib(facts['allocated_bytes'])} allocated + {_gib(facts['unallocated_bytes'])} reserved and not allocated"
        + (f"; most is held by {holders}" if holders else ""),
        evidence=(Evidence(file=file, value=values["text"]),), expected=f"{_gib(values['request_bytes'])} free",
        observed=f"{_gib(values['free_bytes'])} free", confidence="established",
        fix="less to hold: see the places that hold most; a smaller micro-batch, recomputation, more sharding",
    )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
