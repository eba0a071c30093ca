"""Which ranks never came to a collective that others wait in, from what every rank enqueued (PyTorch's flight recorder).

A rank stands in many process groups and one that stays away holds up all of them. The collective that was called first, by
the clocks of the ranks that did come, is where it began; groups whose absent ranks stay away there already, or wait in a
collective that somebody else holds up, only follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One entry of a dump: a collective that its rank enqueued."""

    group: str
    description: str
    sequence: int
    operation: str
    sizes: str
    dtype: str
    state: str
    created_ns: int

    @property
    def pending(self) -> bool:
        return self.state != "completed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    """One rank: its calls, the ranks of each group it knows, the last collective it enqueued in each group."""

    file: str
    rank: int
    calls: tuple[Call, ...]
    groups: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """A collective that some ranks of its group wait in and others never enqueued, or called by another name."""

    call: Call
    file: str
    waiting: frozenset[int]
    missing: frozenset[int]
    others: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.call.group} {self.call.description} {self.call.operation} #{self.call.sequence}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """``roots`` hold up the others, which are ``cascades``; ``unfinished`` were joined by all and never ended."""

    roots: tuple[Stuck, ...]
    cascades: tuple[Stuck, ...]
    mismatched: tuple[Stuck, ...]
    unfinished: tuple[Stuck, ...]
    absent: tuple[int, ...]


def hang_of(dumps: Iterable[Dump]) -> Hang:
    """What the dumps of one job say together; ranks without a dump are ``absent`` and judged as neither here nor there."""
    by_rank = {dump.rank: dump for dump in dumps}
    members: dict[str, tuple[int, ...]] = {}
    calls: dict[str, dict[int, dict[int, Call]]] = defaultdict(lambda: defaultdict(dict))
    for rank, dump in by_rank.items():
        for group, ranks in dump.groups.items():
            members.setdefault(group, ranks)
        for call in dump.calls:
            calls[call.group][call.sequence][rank] = call
    stuck, mismatched, unfinished = [], [], []
    for group, by_sequence in calls.items():
        ranks = tuple(rank for rank in members.get(group, ()) if rank in by_rank)
        last = _last(by_sequence)
        held = _first_missed(by_sequence, ranks, last, by_rank)
        differing = _first_mismatch(by_sequence, by_rank)
        if differing is not None:
            mismatched.append(differing)
        if held is not None:
            stuck.append(held)
        elif differing is None and (open_ended := _first_unfinished(by_sequence, ranks, by_rank)) is not None:
            unfinished.append(open_ended)
    stuck.sort(key=lambda one: one.call.created_ns)
    roots, cascades = _split(stuck)
    every = {rank for ranks in members.values() for rank in ranks}
    return Hang(
        roots=roots,
        cascades=cascades,
        mismatched=tuple(sorted(mismatched, key=lambda one: one.call.created_ns)),
        unfinished=tuple(sorted(unfinished, key=lambda one: one.call.created_ns)),
        absent=tuple(sorted(every - set(by_rank))),
    )


def _last(by_sequence: Mapping[int, Mapping[int, Call]]) -> dict[int, int]:
    """The last collective of the group that each rank enqueued: the ring of entries may have dropped earlier ones."""
    found: dict[int, int] = {}
    for sequence in sorted(by_sequence):
        for rank in by_sequence[sequence]:
            found[rank] = sequence
    return found


def _first_missed(
    by_sequence: Mapping[int, Mapping[int, Call]],
    ranks: tuple[int, ...],
    last: Mapping[int, int],
    by_rank: Mapping[int, Dump],
) -> Stuck | None:
    for sequence in sorted(by_sequence):
        here = by_sequence[sequence]
        missing = frozenset(rank for rank in ranks if rank not in here and last.get(rank, -1) < sequence)
        waiting = frozenset(rank for rank, call in here.items() if call.pending)
        if missing and waiting:
            return _stuck(here, waiting, missing, by_rank)
    return None


def _stuck(
    here: Mapping[int, Call], waiting: frozenset[int], missing: frozenset[int], by_rank: Mapping[int, Dump], **more: Any
) -> Stuck:
    first = min(here, key=lambda rank: here[rank].created_ns)
    lowest = here[min(here)]
    call = Call(
        group=lowest.group, description=lowest.description, sequence=lowest.sequence, operation=lowest.operation,
        sizes=lowest.sizes, dtype=lowest.dtype, state=lowest.state, created_ns=here[first].created_ns,
    )  # fmt: skip
    return Stuck(call=call, file=by_rank[min(here)].file, waiting=waiting, missing=missing, **more)


def _first_mismatch(by_sequence: Mapping[int, Mapping[int, Call]], by_rank: Mapping[int, Dump]) -> Stuck | None:
    """The first collective that ranks of a group called by different names, or with different sizes of an all-reduce."""
    for sequence in sorted(by_sequence):
        here = by_sequence[sequence]
        said: dict[str, list[int]] = defaultdict(list)
        for rank, call in here.items():
            sized = "all_reduce" in call.operation or "allreduce" in call.operation
            said[f"{call.operation} {call.sizes}" if sized else call.operation].append(rank)
        if len(said) > 1:
            fewest = min(said.values(), key=len)
            others = {name: tuple(ranks) for name, ranks in said.items()}
            return _stuck(here, frozenset(here) - set(fewest), frozenset(fewest), by_rank, others=others)
    return None


def _first_unfinished(
    by_sequence: Mapping[int, Mapping[int, Call]], ranks: tuple[int, ...], by_rank: Mapping[int, Dump]
) -> Stuck | None:
    for sequence in sorted(by_sequence):
        here = by_sequence[sequence]
        if ranks and all(rank in here and here[rank].pending for rank in ranks):
            return _stuck(here, frozenset(ranks), frozenset(), by_rank)
    return None


def _split(stuck: list[Stuck]) -> tuple[tuple[Stuck, ...], tuple[Stuck, ...]]:
    roots: list[Stuck] = []
    cascades: list[Stuck] = []
    away: set[int] = set()
    for one in stuck:
        elsewhere = {rank for other in stuck if other is not one for rank in other.waiting}
        if roots and one.missing <= away | elsewhere:
            cascades.append(one)
        else:
            roots.append(one)
            away |= one.missing
    return tuple(roots), tuple(cascades)
