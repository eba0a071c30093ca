"""Slurm's REST API as JSON (``slurmrestd``, ``squeue --json``, ``sinfo --json``): jobs, nodes, partitions by state."""

from __future__ import annotations

from typing import Any

from trilemma.diagnosis.findings import Event, Part, text_of
from trilemma.diagnosis.readers import Reader

KIND = "slurm-rest"
_MOST = 20_000
_LISTS = ("jobs", "nodes", "partitions", "reservations")


class _Gatherer:
    def __init__(self) -> None:
        self._version: str | None = None
        self._seen: dict[str, int] = {}
        self._states: dict[str, dict[str, int]] = {}
        self._events: list[Event] = []

    def take(self, record: Any, where: str) -> None:
        if where == "meta" and isinstance(record, dict):
            named = record.get("Slurm") or record.get("slurm")
            if isinstance(named, dict):
                self._version = text_of(named.get("release"), 40) or "unknown"
        elif where in _LISTS and isinstance(record, dict):
            self._seen[where] = self._seen.get(where, 0) + 1
            states = _states(record)
            counts = self._states.setdefault(where, {})
            for state in states[:1]:
                if state in counts or len(counts) < 64:
                    counts[state] = counts.get(state, 0) + 1
            if len(self._events) < _MOST and where in ("jobs", "nodes"):
                self._events.append(_event(where, record, states))
        elif where == "statistics":
            self._seen["statistics"] = 1

    def part(self) -> Part | None:
        if self._version is None:
            return None
        facts: dict[str, Any] = {"slurm_version": self._version, **self._seen}
        facts |= {f"{name}_by_state": counts for name, counts in self._states.items() if counts}
        return Part(kind=KIND, weight=10 + sum(self._seen.values()), facts=facts, events=tuple(self._events))


def _states(record: dict[str, Any]) -> list[str]:
    """States in capitals, the first the base state: a text, or a list in newer versions; flags after it."""
    named = record.get("job_state", record.get("state"))
    found = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    flags = record.get("state_flags")
    found = [*found, *(flags if isinstance(flags, list) else [])]
    return [text_of(one, 40).upper() for one in found[:8] if isinstance(one, str)]


def _event(where: str, record: dict[str, Any], states: list[str]) -> Event:
    names = ("job_id", "name", "nodes", "exit_code", "state_reason") if where == "jobs" else ("name", "reason", "gres")
    values: dict[str, Any] = {name: text_of(record.get(name)) for name in names}
    return Event(name=where[:-1], line=None, values={**values, "states": states})


READER = Reader(kind=KIND, form="items", begin=_Gatherer)
