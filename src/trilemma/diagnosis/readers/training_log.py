"""Training logs: loss, step time and speed by step, as Megatron-LM, torchtitan, Transformers' Trainer and FSDP examples print."""

from __future__ import annotations

import re
from statistics import median
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "training-log"
_MOST_STEPS = 2_000_000
_N = r"([-+]?(?:nan|inf|\d[\d.]{0,20}(?:[eE][-+]?\d{1,3})?))"
_LOSS = re.compile(rf"(?i)(?:lm loss|['\"]?\bloss['\"]?)\s*[:=]\s*{_N}")
_STEP = re.compile(r"(?i)\b(?:iteration|step|batch)s?\s*[:=]?\s*(\d{1,12})")
_MILLISECONDS = re.compile(rf"elapsed time per iteration \(ms\): {_N}")
_SPEED = re.compile(rf"Speed: {_N} samples/sec")
_TOKENS = re.compile(r"\btps: ([\d,]{1,14})")
_MFU = re.compile(rf"mfu: {_N}%")
_TFLOPS = re.compile(rf"(?:throughput per GPU \(TFLOP/s/GPU\)|tflops): {_N}")


class _Gatherer:
    def __init__(self) -> None:
        self._steps = 0
        self._first: float | None = None
        self._last: float | None = None
        self._bad: Event | None = None
        self._well = 0
        self._samples: dict[str, list[float]] = {}

    def take(self, record: str, where: int) -> None:
        scanned = record[:2000]
        found = _LOSS.search(scanned)
        if found is None or "Namespace(" in scanned:
            return
        step = _STEP.search(scanned)
        if step is None and not scanned.lstrip().startswith("{"):
            return
        self._steps += 1
        loss = _float(found[1])
        if loss is None or loss != loss or loss in (float("inf"), float("-inf")):
            values = {"step": int(step[1]) if step else self._steps, "text": scanned.strip()[:300], "after": self._well}
            self._bad = self._bad or Event(name="bad-loss", line=where, values=values)
        else:
            self._well += 1
            self._first = loss if self._first is None else self._first
            self._last = loss
        for name, pattern in (("step_ms", _MILLISECONDS), ("samples_per_s", _SPEED), ("tokens_per_s_per_gpu", _TOKENS),
                              ("mfu_percent", _MFU), ("tflops_per_gpu", _TFLOPS)):  # fmt: skip
            told = pattern.search(scanned)
            value = _float(told[1]) if told else None
            kept = self._samples.setdefault(name, []) if value is not None else []
            if value is not None and len(kept) < 100_000:
                kept.append(value)

    def part(self) -> Part | None:
        if not self._steps:
            return None
        facts: dict[str, Any] = {"steps_logged": self._steps}
        if self._first is not None:
            facts |= {"first_loss": self._first, "last_loss": self._last}
        facts |= {f"median_{name}": median(values) for name, values in self._samples.items()}
        events = () if self._bad is None else (self._bad,)
        return Part(kind=KIND, weight=3 * self._steps, facts=facts, events=events)


def _float(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer, marks=("oss: ", "'loss'", '"loss"', "oss=", "elapsed time per iteration")
)
