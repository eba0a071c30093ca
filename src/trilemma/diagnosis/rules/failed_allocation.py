"""The sum that failed in an out-of-memory error, line by line, and which of its lines is the one to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Event, Evidence, Finding
from trilemma.diagnosis.readers.out_of_memory import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.diagnosis.shortfall import ledger_words, logits_in, remedies_of, told
from trilemma.quantities import GIB

#: Reserved beyond allocated above this share of the card is fragmentation worth a remedy (research: cases mem-04, mem-07).
_FRAGMENTED = 0.1
#: Memory of others below this share of the card is their bare context.
_NOTICED = 0.02
_SHOWN = 3
_OUTSIDE, _OTHERS = "of this process outside PyTorch (context, NCCL, graphs)", "other processes"
_UNNAMED, _CONTEXT = "held by what the message does not name", "of the context, NCCL and other processes"
#: What contexts of CUDA and NCCL take at most where the message does not tell them from other processes.
_CONTEXT_BYTES = 3 * GIB


def ledger(values: Mapping[str, Any]) -> dict[str, int]:
    """Lines that sum to the card's capacity, in bytes, as far as the message states them; negative rests count as zero.

    What is neither this process, nor others that are named, nor free is held by processes that the message does not see
    (another container) and by the driver.
    """
    capacity, free = values.get("capacity_bytes"), values.get("free_bytes")
    allocated, unallocated = values.get("allocated_bytes"), values.get("unallocated_bytes")
    process, others = _processes(values)
    reserved = (allocated or 0) + (unallocated or 0)
    lines: dict[str, int] = {}
    if allocated is not None:
        lines["allocated by PyTorch"] = allocated
    if unallocated is not None:
        lines["reserved by PyTorch, not allocated"] = unallocated
    if process is not None:
        lines[_OUTSIDE if reserved else "of this process"] = max(process - reserved, 0)
    if others:
        lines[_OTHERS] = sum(others.values())
    if free is not None:
        lines["free"] = free
    if capacity is not None and free is not None and (reserved or process is not None):
        rest = capacity - sum(lines.values())
        if rest > 0:
            lines[_UNNAMED if process is not None else _CONTEXT] = rest
    return lines


def _processes(values: Mapping[str, Any]) -> tuple[int | None, dict[str, int]]:
    """Bytes of this process and of the others. In a container the message cannot tell which it is: the least that can be."""
    process, others = values.get("process_bytes"), dict(values.get("others_bytes", {}))
    reserved = (values.get("allocated_bytes") or 0) + (values.get("unallocated_bytes") or 0)
    large = [pid for pid, size in others.items() if size >= reserved > 0]
    if process is None and large:
        process = others.pop(min(large, key=lambda pid: others[pid]))
    return process, others


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        seen: set[tuple[Any, ...]] = set()
        for event in part.events:
            key = (event.values.get("request_bytes"), event.values.get("gpu"))
            if key not in seen and len(seen) < _SHOWN:
                seen.add(key)
                yield _finding(file, event, len(part.events), case.expectations.get(file))


def sum_words(values: Mapping[str, Any]) -> str:
    """ "15.66 GiB were asked for; 72.80 GiB allocated by PyTorch + … = 79.10 GiB"."""
    lines, request = ledger(values), values.get("request_bytes")
    asked = f"{_gib(request)} were asked for" if request else "an allocation failed"
    return f"{asked}; {_total(lines)}" if lines else asked


def _total(lines: Mapping[str, int]) -> str:
    return " + ".join(f"{_gib(size)} {name}" for name, size in lines.items()) + f" = {_gib(sum(lines.values()))}"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _finding(file: str, event: Event, times: int, expectation: Expectation | None) -> Finding:
    values = event.values
    lines = ledger(values)
    request, capacity = values.get("request_bytes"), values.get("capacity_bytes")
    summed = f": {_total(lines)}" if lines else ""
    of = f" of {_gib(capacity)}" if capacity else ""
    cause, fix, effect = _cause(values, lines)
    expected = f"{_gib(request)} free in one piece" if request else None
    if expectation is not None:
        expected = f"by the ledger ({expectation.said}): {ledger_words(expectation.answer)}"
        changes, gives = told(remedies_of(expectation, values))
        if changes and cause is None:
            fix, effect = changes, gives
        elif changes:
            fix += f"; or, with less to hold: {changes}"
        logits = logits_in(request or 0, expectation.answer)
        summed += f"; {logits}" if logits else ""
    asked = f"{_gib(request)} were asked for" if request else "an allocation failed"
    return Finding(
        id="memory.out-of-memory" if cause is None else f"memory.{cause}",
        role="root",
        severity="error",
        claim=f"out of memory on GPU {values.get('gpu', '?')}{of}: {asked}{summed}"
        + (f" ({times} such errors)" if times > 1 else ""),
        evidence=(Evidence(file=file, line=event.line, value=values["text"]),),
        expected=expected,
        observed=f"{_gib(values['free_bytes'])} free" if "free_bytes" in values else None,
        confidence="established" if lines else "supported",
        fix=fix,
        predicted_effect=effect,
    )


def _cause(values: Mapping[str, Any], lines: Mapping[str, int]) -> tuple[str | None, str, str | None]:
    """Which line is too large, what mends it, and what that gives."""
    request, capacity = values.get("request_bytes") or 0, values.get("capacity_bytes") or 0
    unallocated, others = values.get("unallocated_bytes") or 0, _processes(values)[1]
    taken = sum(others.values())
    if taken and taken + values.get("free_bytes", 0) >= request and taken > _NOTICED * capacity:
        holders = ", ".join(f"{pid} ({_gib(size)})" for pid, size in list(others.items())[:4])
        return "other-process", f"end the other processes on this GPU: {holders}", f"{_gib(taken)} more are free"
    if unallocated and unallocated >= request and unallocated >= _FRAGMENTED * capacity:
        return (
            "fragmentation",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF since 2.9); with tensor-parallel FSDP2 also "
            "TORCH_NCCL_AVOID_RECORD_STREAMS=1",
            f"{_gib(request)} fit into the {_gib(unallocated)} that are reserved and not allocated",
        )
    rest = max(lines.get(_UNNAMED, 0), lines.get(_CONTEXT, 0) - _CONTEXT_BYTES)
    if rest > request and rest > _NOTICED * capacity:
        return (
            "unseen-process",
            "nvidia-smi on the host: another container or a process that did not end holds memory of this GPU",
            f"up to {_gib(rest)} more are free",
        )
    return (
        None,
        "less to hold: a smaller micro-batch or sequence, recomputation, more sharding, a smaller share for the cache; "
        "trilemma check --log names changes with which the command fits",
        None,
    )


RULE = Rule(needs=(KIND,), judge=_judge)
