"""Dumps of PyTorch's NCCL flight recorder, pickled or as JSON: what one rank enqueued, started and ended.

Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp (PyTorch 2.5 to 2.9, dump versions 2.0 to 2.9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trilemma.diagnosis.findings import Case, Event, Part, text_of
from trilemma.diagnosis.hangs import Call, Dump, Hang, hang_of
from trilemma.diagnosis.readers import Reader

KIND = "nccl-flight-recorder"
_MOST_CALLS = 200_000
_MOST_RANKS = 1 << 17


class _Gatherer:
    def __init__(self) -> None:
        self._calls: list[Event] = []
        self._groups: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._facts: dict[str, Any] = {}
        self._entries = 0

    def take(self, record: Any, where: str) -> None:
        if where == "entries" and isinstance(record, dict) and "collective_seq_id" in record:
            self._entries += 1
            call = _call(record)
            if call is not None and len(self._calls) < _MOST_CALLS:
                self._calls.append(call)
        elif where == "pg_config" and isinstance(record, dict):
            for name, group in list(record.items())[:_MOST_CALLS]:
                if isinstance(group, dict):
                    self._groups[str(name)] = (text_of(group.get("desc")), _ranks(group.get("ranks")))
        elif where in ("version", "nccl_version", "rank") and isinstance(record, str | int):
            self._facts[where] = record
        elif where == "pg_status" and isinstance(record, dict):
            self._facts["groups_pending"] = sum(_open(status) for status in record.values())

    def part(self) -> Part | None:
        if not self._groups and not self._entries:
            return None
        facts = {
            **self._facts,
            "entries": self._entries,
            "pending": sum(call.values["state"] != "completed" for call in self._calls),
            "groups": len(self._groups),
        }
        groups = Event(name="groups", line=None, values=self._groups)
        return Part(kind=KIND, weight=1 + self._entries, facts=facts, events=(groups, *self._calls))


def _open(status: Any) -> bool:
    if not isinstance(status, dict):
        return False
    return bool(status.get("last_enqueued_collective") != status.get("last_completed_collective"))


def _ranks(said: Any) -> tuple[int, ...]:
    """Ranks of a group: a list, or its text "[0, 1]"."""
    if isinstance(said, str):
        said = [int(number) for number in re.findall(r"\d{1,7}", said[: 8 * _MOST_RANKS])]
    if not isinstance(said, list):
        return ()
    return tuple(rank for rank in said[:_MOST_RANKS] if isinstance(rank, int))


def _call(record: Mapping[str, Any]) -> Event | None:
    """An entry as plain values; sends and receives are left out, they have one partner and no group to be missing from."""
    sequence, group = record.get("collective_seq_id"), record.get("process_group")
    created = record.get("time_created_ns")
    if not isinstance(sequence, int) or not isinstance(created, int | float) or record.get("is_p2p"):
        return None
    name, description = group if isinstance(group, list | tuple) and len(group) == 2 else (group, "")
    dtypes = record.get("input_dtypes")
    return Event(
        name="call",
        line=None,
        values={
            "group": text_of(name),
            "description": text_of(description),
            "sequence": sequence,
            "operation": text_of(record.get("profiling_name")) or "unknown",
            "sizes": _sizes(record.get("input_sizes")),
            "dtype": text_of(dtypes[0]) if isinstance(dtypes, list | tuple) and dtypes else "",
            "state": text_of(record.get("state")),
            "created_ns": int(created) if abs(created) < 1e30 else 0,
        },
    )


def _sizes(said: Any) -> str:
    """ "4096x5120" of [[4096, 5120]]; several tensors one after the other."""
    if not isinstance(said, list | tuple):
        return ""
    shapes = [one for one in said[:4] if isinstance(one, list | tuple)]
    return " ".join("x".join(text_of(size) for size in shape[:8]) for shape in shapes)


def hangs_in(case: Case) -> list[tuple[str, Hang | None]]:
    """The dumps of each folder side by side, a job each; None where fewer than two say which rank they are of."""
    by_folder: dict[str, list[Dump]] = {}
    for file, part in case.parts(KIND):
        folder, _, name = file.rpartition("/")
        dumps = by_folder.setdefault(folder, [])
        rank = part.facts.get("rank")
        if not isinstance(rank, int):
            numbers = re.findall(r"\d{1,7}", name.removesuffix(".gz").removesuffix(".json"))
            rank = int(numbers[-1]) if numbers else None
        if rank is not None:
            groups = {group: ranks for group, (_, ranks) in part.events[0].values.items()}
            calls = tuple(Call(**event.values) for event in part.events[1:])
            dumps.append(Dump(file=file, rank=rank, calls=calls, groups=groups))
    return [(folder, hang_of(dumps) if len(dumps) > 1 else None) for folder, dumps in by_folder.items()]


def _together(case: Case) -> dict[str, dict[str, Any]]:
    told = {
        folder: {one.name: sorted(one.missing) for one in hang.roots}
        for folder, hang in hangs_in(case)
        if hang is not None
    }
    files = ((file, file.rpartition("/")[0]) for file, _ in case.parts(KIND))
    return {file: {"missing_ranks": told[folder]} for file, folder in files if folder in told}


READER = Reader(kind=KIND, form="items", begin=_Gatherer, together=_together)
