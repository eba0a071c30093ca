"""Training logs: loss, step time, speed, memory and waits by step, as the loops of many projects print them.

Lines: Megatron-LM training.py (``iteration``, ``elapsed time per iteration``, ``memory (MB)``), torchtitan metrics.py
(``step: … loss: … tps:``), DeepSpeed timer.py (``RunningAvgSamplesPerSec``, ``MaxMemAllocated``), Transformers' Trainer (dicts
and tqdm), Composer's console (``Train throughput/…``), NeMo (``train_step_timing in s``), Lightning (``data_time``), nanochat
(``dt:``), AWS's FSDP example (``Speed: … samples/sec``), nanoGPT (``iter 100: loss …, time …ms, mfu …%``), modded-nanogpt
(``step:…/… train_time:…ms``: time since the start), llm.c (``step …/… | loss … | … ms | … tok/s``), litgpt (``iter time: … ms``),
nanotron (``elapsed_time_per_iteration_ms``), MaxText (``completed step: …, seconds: …, TFLOP/s/device: …``), torchtune
(``tokens_per_second_per_gpu``), picotron (``Tokens/s/GPU``).
"""

from __future__ import annotations

import math
import re
from array import array
from statistics import fmean, median
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader
from trilemma.quantities import GIB, MIB

KIND = "training-log"
_MOST_STEPS = 200_000
_MOST_PAUSES = 1000
_N = r"([-+]?(?:nan|inf|\d[\d,.]{0,20}(?:[eE][-+]?\d{1,3})?))"
_LOSS = re.compile(
    rf"(?i)(?:lm[ _]loss|reduced_train_loss|loss/train/total|['\"]?\b(?:train_)?loss(?: train)?['\"]?)\s*[:=]\s*['\"]?{_N}"
    rf"|\biter \d{{1,12}}: loss {_N}|\| (?:train )?loss {_N}"
)
_STEP = re.compile(r"(?i)\b(?:iteration|global_step|step|batch|iter)s?\s*[:=]?\s*(\d{1,12})")
_NOT_A_STEP = ("Namespace(", "alidation", "eval_loss", "test loss", "val_loss:")
#: Figures of a step: name, what one is worth in the unit of the name, pattern.
_FIGURES: tuple[tuple[str, float, re.Pattern[str]], ...] = (
    ("step_ms", 1.0, re.compile(rf"elapsed time per iteration \(ms\): {_N}")),
    ("step_ms", 1e3, re.compile(rf"(?:train_step_timing in s|iter time \(s\)|step_time|sec/iter)['\"]?\s*[:=]\s*{_N}")),
    ("step_ms", 1.0, re.compile(rf"\bdt:\s*{_N}\s*ms")),
    ("step_ms", 1.0, re.compile(rf"(?:elapsed_time_per_iteration_ms: |iter time: |\bloss {_N[1:-1]}, time ){_N} ?(?:ms| \||$)")),
    ("step_ms", 1.0, re.compile(rf"\| {_N} ms \|.{{0,60}}tok/s")),
    ("step_ms", 1e3, re.compile(rf"completed step: \d{{1,12}}, seconds: {_N}")),
    ("samples_per_s", 1.0, re.compile(rf"(?:Speed:|CurrSamplesPerSec=|samples/sec:)\s*{_N}")),
    ("samples_per_s", 1.0, re.compile(rf"['\"]train_samples_per_second['\"]: {_N}")),
    ("tokens_per_s_per_gpu", 1.0, re.compile(rf"(?i)(?:\btps:\s*|throughput/device/tokens_per_sec(?:ond)?[:=] ?|"
                                            rf"tokens/s/(?:gpu|device):? |tokens_per_second_per_gpu[:=] ?){_N}")),
    ("tokens_per_s", 1.0, re.compile(rf"\btok/sec:\s*{_N}|\| {_N} tok/s")),
    ("mfu_percent", 1.0, re.compile(rf"(?i)\bmfu:? {_N}(?:%| \|)|\| {_N}% bf16 MFU")),
    ("mfu_percent", 100.0, re.compile(rf"throughput/device/mfu: {_N}")),
    ("tflops_per_gpu", 1.0, re.compile(rf"(?:throughput per GPU \(TFLOP/s/GPU\)|tflops|TFLOP/s/device): {_N}")),
    ("data_s", 1.0, re.compile(rf"(?:data_time|time_data|data_loading|time/data)['\"]?\s*[:=]\s*{_N}(?!\s*ms)")),
    ("gradient_norm", 1.0, re.compile(rf"(?i)grad[_ ]norm['\"]?\s*[:=]\s*['\"]?{_N}")),
    ("loss_scale", 1.0, re.compile(rf"loss scale: {_N}")),
    ("memory_bytes", GIB, re.compile(rf"memory:\s*{_N}GiB")),
    ("memory_bytes", MIB, re.compile(rf"max reserved: {_N}")),
    ("memory_bytes", 1e9, re.compile(rf"(?:MaxMemAllocated=|memory/peak_reserved_mem: ){_N}")),
    ("allocated_bytes", MIB, re.compile(rf"max allocated: {_N}")),
    ("memory_bytes", GIB, re.compile(rf"Max CUDA memory reserved was {_N} GB")),
    ("allocated_bytes", GIB, re.compile(rf"Max CUDA memory allocated was {_N} GB")),
    ("allocated_bytes", MIB, re.compile(rf"(?<!max )allocated: {_N}")),
)  # fmt: skip
_RATE = re.compile(r"\|\s*\d{1,9}/\d{1,9} \[[\d:]{1,12}<[^,]{1,16},\s*([\d.]{1,10})(s/it|it/s)")
#: What stands before the bar of a loop of steps: nothing, a rank, an epoch; other bars load, download, compile, capture.
_PREFIX = re.compile(r"[\[(][^\])]{0,60}[\])]|\b(?:rank ?)?\d{1,6}(?:/\d{1,6})?\b|[\W_]+", re.IGNORECASE)
_TRAINS = re.compile(r"(?i)\b(?:epochs?|train\w*|steps?|iter(?:ation)?s?|loss)\b")
_ELAPSED = re.compile(rf"\bstep:(\d{{1,12}})(?:/\d{{1,12}})? .{{0,80}}?train_time:{_N}ms")
_ATTEMPTED = re.compile(rf"(?i)attempted loss scale: {_N}|reducing (?:loss scale )?to {_N}")
#: GradScaler begins at this scale, DeepSpeed and Megatron-LM far above; overflows down to it are how the scale is found.
_FIRST_SCALE = 65536.0
_PAUSE = re.compile(r"\[?GC[ \w]{0,20}\]?:?.{0,60}?([\d.]{1,10})\s*(ms|s|seconds)\b")
_DTYPE = re.compile(r"using (torch\.\w{1,20}) for parameters")
_DEVICE = re.compile(r"CUDA capacity: (.{3,60}?) with [\d.]{1,8}GiB memory")
_PEAK = re.compile(rf"(?i)peak (?:flops|tflops)[^\d]{{0,40}}{_N}")
_OVERFLOW = ("OVERFLOW! Rank", "Gradient overflow.", "overflow detected. Skipping")
_COUNTED = {
    "overflows": "overflows",
    "settling": "overflows_while_the_scale_settled",
    "allocator_flushes": "allocator_flushes",
}
_PRESSURE = re.compile(
    r"(\d{1,6}) pytorch allocator cache flush|num_alloc_retries['\"]?\s*[:=]\s*(\d{1,6})|CUDA memory allocation retr"
)


class _Gatherer:
    def __init__(self) -> None:
        self._steps = 0
        self._losses: array[float] = array("d")
        self._numbers: array[int] = array("q")
        self._lines: array[int] = array("q")
        self._bad: Event | None = None
        self._well = 0
        self._samples: dict[str, array[float]] = {}
        self._at: dict[str, array[int]] = {}
        self._once: dict[str, Any] = {}
        self._events: dict[str, Event] = {}
        self._counts: dict[str, int] = {"overflows": 0, "settling": 0, "allocator_flushes": 0}
        self._pauses: list[float] = []
        self._before: tuple[int, float] | None = None

    def take(self, record: str, where: int) -> None:
        scanned = record[:2000]
        self._aside(scanned, where)
        if any(word in scanned for word in _NOT_A_STEP):
            return
        found = _LOSS.search(scanned)
        step = _STEP.search(scanned)
        if found is not None and (step is not None or "{" in scanned[:60] or "Train " in scanned[:40]):
            self._loss(found, step, scanned, where)
        for name, unit, pattern in _FIGURES:
            told = pattern.search(scanned)
            value = _float(told[told.lastindex or 0]) if told else None
            if value is not None and math.isfinite(value):
                self._keep(name, value * unit, where)
        if "it]" in scanned or "it/s" in scanned:
            rate = _RATE.search(scanned)
            value = _float(rate[1]) if rate and _of_steps(scanned, rate.start()) else None
            if value:
                self._keep("step_ms", value * 1e3 if rate and rate[2] == "s/it" else 1e3 / value, where)
        elif "train_time:" in scanned and (elapsed := _ELAPSED.search(scanned)):
            self._since(int(elapsed[1]), _float(elapsed[2]), where)

    def _since(self, step: int, elapsed_ms: float | None, where: int) -> None:
        """A step's time where the log tells the time since the start: from one line to the next."""
        if elapsed_ms is None or not math.isfinite(elapsed_ms):
            return
        if self._before is not None and step > self._before[0] and elapsed_ms >= self._before[1]:
            self._keep("step_ms", (elapsed_ms - self._before[1]) / (step - self._before[0]), where)
        self._before = (step, elapsed_ms)

    def _loss(self, found: re.Match[str], step: re.Match[str] | None, scanned: str, where: int) -> None:
        self._steps += 1
        number = int(step[1]) if step else self._steps
        loss = _float(found[found.lastindex or 0])
        if loss is None or not math.isfinite(loss):
            values = {"step": number, "text": scanned.strip()[:300], "after": self._well}
            self._bad = self._bad or Event(name="bad-loss", line=where, values=values)
            return
        self._well += 1
        if len(self._losses) < _MOST_STEPS:
            self._losses.append(loss)
            self._numbers.append(number)
            self._lines.append(where)

    def _keep(self, name: str, value: float, where: int) -> None:
        kept = self._samples.setdefault(name, array("d"))
        if len(kept) < _MOST_STEPS:
            kept.append(value)
            self._at.setdefault(name, array("q")).append(where)

    def _aside(self, text: str, where: int) -> None:
        """What a log says beside its steps: once, or counted."""
        if "for parameters" in text and (found := _DTYPE.search(text)):
            self._tell("parameters_in", found[1], where, text)
        elif "CUDA capacity" in text and (found := _DEVICE.search(text)):
            self._tell("device", found[1], where, text)
        elif "GC" in text and (found := _PAUSE.search(text)):
            value = _float(found[1])
            if value is not None and len(self._pauses) < _MOST_PAUSES:
                self._pauses.append(value * (1 if found[2] == "ms" else 1e3))
                self._events.setdefault("pause", Event(name="pause", line=where, values={"text": text.strip()[:300]}))
        elif "aving checkpoint" in text:
            self._events["checkpoint"] = Event(name="checkpoint", line=where, values={"text": text.strip()[:300]})
        elif any(word in text for word in _OVERFLOW):
            self._overflow(text, where)
        elif "alloc" in text and (found := _PRESSURE.search(text)):
            flushes = next((int(one) for one in found.groups() if one), 1)
            if flushes:
                self._counts["allocator_flushes"] += flushes
                values = {"text": text.strip()[:300]}
                self._events.setdefault("pressure", Event(name="pressure", line=where, values=values))
        elif "peak" in text.lower() and "lops" in text.lower() and (found := _PEAK.search(text)):
            value = _float(found[1])
            if value:
                self._tell("stated_peak_flops", value if value > 1e6 else value * 1e12, where, text)

    def _overflow(self, text: str, where: int) -> None:
        scale = _ATTEMPTED.search(text)
        attempted = _float(scale[scale.lastindex or 0]) if scale else None
        self._counts["settling" if attempted and attempted >= _FIRST_SCALE else "overflows"] += 1
        self._events.setdefault("overflow", Event(name="overflow", line=where, values={"text": text.strip()[:300]}))

    def _tell(self, name: str, value: Any, where: int, text: str) -> None:
        if name not in self._once:
            self._once[name] = value
            self._events[name] = Event(name=name, line=where, values={"text": text.strip()[:300]})

    def part(self) -> Part | None:
        peaks = self._samples.get("memory_bytes") or self._samples.get("allocated_bytes")
        weight = 3 * self._steps + sum(len(values) for values in self._samples.values())
        if not self._steps and not ({"step_ms", "samples_per_s", "tokens_per_s_per_gpu"} & self._samples.keys()):
            if not self._once and not self._pauses and not self._events and not peaks:
                return None
            weight = 1
        facts: dict[str, Any] = {"steps_logged": max(self._steps, len(self._samples.get("step_ms", ())))}
        if self._losses:
            facts |= {"first_loss": self._losses[0], "last_loss": self._losses[-1]}
        facts |= {f"median_{name}": median(values) for name, values in self._samples.items()}
        if len(self._samples.get("step_ms", ())) > 1:
            facts["mean_step_ms"] = fmean(self._samples["step_ms"][1:])  # the first step compiles and warms up
        for name, fact in (("memory_bytes", "peak_reserved_bytes"), ("allocated_bytes", "peak_allocated_bytes")):
            if self._samples.get(name):
                facts[fact] = max(self._samples[name])
        if "peak_reserved_bytes" in facts or "peak_allocated_bytes" in facts:
            facts["peak_memory_bytes"] = facts.get("peak_reserved_bytes", facts.get("peak_allocated_bytes"))
        facts |= self._once | {_COUNTED[name]: count for name, count in self._counts.items() if count}
        if self._pauses:
            facts |= {"pauses": len(self._pauses), "longest_pause_ms": max(self._pauses)}
        first = [] if not self._lines else [Event(name="step", line=self._lines[0], values={"loss": self._losses[0]})]
        events = (*([] if self._bad is None else [self._bad]), *self._events.values(), *first)
        return Part(kind=KIND, weight=weight, facts=facts, events=events, whole=self._series())

    def _series(self) -> dict[str, tuple[Any, Any]]:
        """By name the lines and values of each step; losses with their step numbers under "step"."""
        series: dict[str, tuple[Any, Any]] = {name: (self._at[name], values) for name, values in self._samples.items()}
        return {**series, "loss": (self._lines, self._losses), "step": (self._lines, self._numbers)}


def _of_steps(text: str, at: int) -> bool:
    """Whether the bar that ends at ``at`` counts steps of a training, by the words before it in its line."""
    words = text[text.rfind("\r", 0, at) + 1 : at].rpartition("%")[0]
    return not _PREFIX.sub("", words) or _TRAINS.search(words) is not None or "loss" in text[at : at + 300]


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("oss: ", "oss:", "'loss'", '"loss"', "_loss'", "oss=", "oss/train", "elapsed time per iteration", "memory (MB)",
           "Train throughput/", "Train memory/", "train_step_timing", "SamplesPerSec", "data_time", "time_data", "time/data",
           "s/it", "it/s", "for parameters", "CUDA capacity", "[GC", "GC ", "OVERFLOW!", "overflow", "allocator cache flush",
           "alloc_retries", "allocation retr", "samples_per_second", "eak FLOPS", "eak flops", "eak TFLOPS", "iter time (s)",
           "tok/s", "Max CUDA memory", "aving checkpoint", "train_time:", "iter time: ", "elapsed_time_per_iteration_ms",
           "completed step", "tokens_per_second_per_gpu", "okens/s/", ": loss ", "| loss "),
)  # fmt: skip
