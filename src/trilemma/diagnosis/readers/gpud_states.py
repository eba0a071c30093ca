"""States of a node's components as gpud serves them (``/v1/states``, ``/v1/info``; leptonai/gpud api/v1/types.go)."""

from __future__ import annotations

from typing import Any

from trilemma.diagnosis.findings import Event, Part, text_of
from trilemma.diagnosis.readers import Reader

KIND = "gpud-states"
_MOST = 4096
_HEALTH = ("Healthy", "Unhealthy", "Degraded", "Initializing")


class _Gatherer:
    def __init__(self) -> None:
        self._states: dict[str, int] = {}
        self._events: list[Event] = []
        self._components = 0

    def take(self, record: Any, where: str) -> None:
        if where != "" or not isinstance(record, dict) or not isinstance(record.get("component"), str):
            return
        info = record.get("info") if isinstance(record.get("info"), dict) else record
        states = info.get("states") if isinstance(info, dict) else None
        if not isinstance(states, list):
            return
        self._components += 1
        for state in states[:64]:
            health = text_of(state.get("health"), 40) if isinstance(state, dict) else ""
            if health not in _HEALTH:
                continue
            self._states[health] = self._states.get(health, 0) + 1
            if health in ("Unhealthy", "Degraded") and len(self._events) < _MOST:
                actions = state.get("suggested_actions")
                repairs = actions.get("repair_actions") if isinstance(actions, dict) else None
                values = {
                    "component": text_of(record["component"], 80), "health": health, "reason": text_of(state.get("reason"), 300),
                    "repairs": [text_of(one, 40) for one in repairs[:4]] if isinstance(repairs, list) else [],
                }  # fmt: skip
                self._events.append(Event(name="unwell", line=None, values=values))

    def part(self) -> Part | None:
        if not self._states:
            return None
        facts = {"components": self._components, "states_by_health": self._states}
        return Part(kind=KIND, weight=10 + self._components, facts=facts, events=tuple(self._events))


READER = Reader(kind=KIND, form="items", begin=_Gatherer)
