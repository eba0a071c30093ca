"""Start-up logs of serving engines: what each engine's own reader of its logs finds, and preemptions while it runs."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader
from trilemma.engines import log_readers

KIND = "engine-log"
_PREEMPTIONS = re.compile(r"total_num_cumulative_preemption=(\d{1,12})")
_USAGE = re.compile(r"KV cache usage: ([0-9]{1,4}(?:\.[0-9]{1,4})?)%")
_HITS = re.compile(r"Prefix cache hit rate: ([0-9]{1,4}(?:\.[0-9]{1,4})?)%")
#: vLLM's scheduler (before its V1) and SGLang's (`Retract requests`, with how many), which both compute them again.
_PREEMPTED = re.compile(r"is preempted by|Retract requests\.(?: #retracted_reqs: (\d{1,9}))?")
_RUNNING = ("preempted by", "cumulative_preemption=", "Retract requests", "KV cache usage: ", "Prefix cache hit rate")


class _Gatherer:
    def __init__(self) -> None:
        self._engines = {name: begin() for name, (_, begin) in log_readers().items()}
        self._lines: dict[str, int] = {}
        self._preemptions = 0
        self._preempted: Event | None = None
        self._usage: float | None = None
        self._hits: float | None = None

    def take(self, record: str, where: int) -> None:
        for one in self._engines.values():
            one.take(record, where)
        if found := _PREEMPTED.search(record):
            total = _PREEMPTIONS.search(record)
            self._preemptions = int(total[1]) if total else self._preemptions + int(found[1] or 1)
            values = {"text": record.strip()[:300]}
            self._preempted = self._preempted or Event(name="preemption", line=where, values=values)
        if found := _USAGE.search(record):
            self._usage = max(self._usage or 0.0, float(found[1]) / 100)
        if found := _HITS.search(record):
            self._hits = float(found[1]) / 100

    def part(self) -> Part | None:
        told = ((name, one.result("")) for name, one in self._engines.items())
        for name, log in sorted(told, key=lambda one: -len(one[1].lines)):
            measured = [key for key in log.measured if not key.startswith("oom_")]
            if not measured and log.refusal in (None, "out_of_memory") and log.version is None:
                continue
            facts: dict[str, Any] = {"engine": name}
            facts |= {key: value for key, value in (("version", log.version), ("model", log.model)) if value}
            facts |= {key: measured.value for key, measured in log.measured.items()}
            if log.outcome is not None:
                facts["outcome"] = log.outcome
            if self._preemptions:
                facts["preemptions"] = self._preemptions
            if self._usage is not None:
                facts["peak_kv_cache_usage"] = self._usage
            if self._hits is not None:
                facts["prefix_cache_hit_rate"] = self._hits
            events = [] if self._preempted is None else [self._preempted]
            events += [
                Event(name=key, line=measured.line_number, values={"value": measured.value, "text": measured.text})
                for key, measured in log.measured.items()
            ]
            if log.refusal is not None and log.reason is not None:
                values = {"refusal": log.refusal, "outcome": log.outcome or "configuration", "text": log.reason.text}
                events.append(Event(name="refusal", line=log.reason.line_number, values=values))
            return Part(kind=KIND, weight=2.0 + len(log.lines), facts=facts, events=tuple(events), whole=log)
        return None


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=tuple(dict.fromkeys((*(mark for marks, _ in log_readers().values() for mark in marks), *_RUNNING))),
)  # fmt: skip
