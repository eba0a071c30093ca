"""Every plan of a search as one table: memory from the engine, speed from timing, a row per layout and load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.errors import InputError
from trilemma.estimate.speed import slots
from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.plans import EngineRef, Layout, ServeOptions
from trilemma.quantities import show_count
from trilemma.search.space import BATCHES, Fixed, Precision, take
from trilemma.timing import Machine, ServingSpeed, concurrency_for_rate, model_work, serving_speed
from trilemma.workloads import Serving


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What cannot be an array: a precision of the weights and a format of the cache."""

    precision: Precision
    kv_dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a search is asked: the cards, the load (lengths stated), what is settled, and the engine."""

    cluster: Cluster
    workload: Serving
    fixed: Fixed
    engine: EngineRef
    batches: tuple[int, ...] = BATCHES

    @property
    def loads_per_layout(self) -> int:
        """Rows of each layout: one where the load is stated, else one for each of ``batches``."""
        return 1 if self.workload.concurrency or self.workload.rate else len(self.batches)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTable:
    """Plans that fit, one row each, over all choices.

    ``choice`` indexes ``choices`` and the cache formats in force, ``kv_formats``; ``requests`` are in flight in all,
    ``used`` is the share of the card's memory taken. ``distinct`` choices are left when those that mean the same cache
    format are dropped. ``legal`` counts plans that obey the layout rules, ``rejected`` those of them that are not in the
    table, by why.
    """

    choices: tuple[Choice, ...]
    kv_formats: tuple[str, ...]
    choice: NDArray[np.int64]
    layout: Layout
    requests: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    per_gpu: NDArray[np.float64]
    per_user: NDArray[np.float64]
    used: NDArray[np.float64]
    distinct: int
    legal: int
    rejected: Counter[str]

    def __len__(self) -> int:
        return len(self.choice)


def options_for(choice: Choice, *, context: int, fixed: Fixed) -> ServeOptions:
    """The engine options of every plan of ``choice``."""
    return ServeOptions(
        context=context, kv_dtype=None if choice.kv_dtype == "auto" else choice.kv_dtype,
        quantization=choice.precision.on_load, memory_fraction=fixed.memory_fraction, max_seqs=fixed.max_seqs,
        max_batched_tokens=fixed.max_batched_tokens, eager=fixed.eager,
    )  # fmt: skip


def plan_table(choices: Sequence[Choice], layout: Layout, question: Question) -> PlanTable:
    """Run every choice over the whole table of layouts and loads.

    A choice that the engine refuses is counted with the engine's own words; where it refuses all, `InputError` tells why.
    """
    parts: list[dict[str, NDArray[Any]]] = []
    refusals: list[InputError] = []
    rejected: Counter[str] = Counter()
    plans = len(np.atleast_1d(layout.tp)) * question.loads_per_layout
    formats = [""] * len(choices)
    repeated = 0
    for at, choice in enumerate(choices):
        try:
            start = _start_up(choice, layout, question)
        except InputError as error:
            rejected[f"{choice.precision.name}, KV {choice.kv_dtype}: {error}"] += plans
            refusals.append(error)
            continue
        formats[at] = start.kv_format
        if start.kv_format in (formats[other] for other in range(at) if choices[other].precision is choice.precision):
            repeated += 1
            continue
        part = _choice_rows(choice, start, layout, question, rejected)
        part["choice"] = np.full(len(part["tp"]), at, dtype=np.int64)
        parts.append(part)
    if refusals and not parts:
        raise refusals[0]
    names = ("choice", "tp", "pp", "dp", "ep", "requests", "ttft_s", "tpot_s", "per_gpu", "per_user", "used")
    columns = {name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0) for name in names}
    degrees = {name: columns.pop(name).astype(np.int64) for name in ("tp", "pp", "dp", "ep")}
    return PlanTable(
        choices=tuple(choices),
        kv_formats=tuple(formats),
        choice=columns.pop("choice").astype(np.int64),
        layout=Layout(**degrees),
        **columns,
        distinct=len(choices) - repeated,
        legal=plans * (len(choices) - repeated),
        rejected=rejected,
    )


def _start_up(choice: Choice, layout: Layout, question: Question) -> StartUp:
    """Start-up of every layout under ``choice``."""
    context = question.workload.longest_request or 0
    return engines.get(question.engine.name).start_up(
        model=choice.precision.model,
        accelerator=question.cluster.accelerator,
        layout=layout,
        options=options_for(choice, context=context, fixed=question.fixed),
        version=question.engine.version,
    )


def _choice_rows(
    choice: Choice, start: StartUp, layout: Layout, question: Question, rejected: Counter[str]
) -> dict[str, NDArray[Any]]:
    cluster, workload = question.cluster, question.workload
    isl, osl = workload.isl or 0, workload.osl or 0
    engine = engines.get(question.engine.name)
    stages = np.broadcast_to(engine.likeliest_stage(start)[0], (len(np.atleast_1d(layout.tp)),))
    good = _starting(stages, start, rejected, question.loads_per_layout)
    fitting = take(layout, good)
    held = np.broadcast_to(slots(start, length=isl + osl), good.shape)[good]
    used = np.broadcast_to(start.ledger.total() / start.capacity_bytes, good.shape)[good]
    work = model_work(choice.precision.model, cluster.accelerator)
    machine = Machine.serving(cluster, work=work, engine=engines.canonical(question.engine.name))
    kv_format = catalogue.get(start.kv_format)
    load: dict[str, Any] = {"isl": isl, "osl": osl, "kv_format": kv_format, "prefix_hit": workload.prefix_hit}
    if workload.rate is not None:
        requests = concurrency_for_rate(work, machine, fitting, rate=workload.rate, slots=held, **load)
    elif workload.concurrency is not None:
        requests = np.full(len(held), float(workload.concurrency))
    else:
        rows = np.repeat(np.arange(len(held)), len(question.batches))
        fitting, held, used = take(fitting, rows), held[rows], used[rows]
        requests = np.tile(np.array(question.batches, dtype=float), len(rows) // len(question.batches)) * fitting.dp
    speed = serving_speed(work, machine, fitting, concurrency=requests, slots=held, rate=workload.rate, **load)
    keep = _kept(speed, workload, rejected)
    columns = {
        "tp": fitting.tp, "pp": fitting.pp, "dp": fitting.dp, "ep": fitting.ep, "requests": requests,
        "ttft_s": speed.ttft_s, "tpot_s": speed.tpot_s, "per_gpu": speed.tokens_per_s_per_gpu,
        "per_user": speed.tokens_per_s_per_user, "used": used,
    }  # fmt: skip
    return {name: np.asarray(column)[keep] for name, column in columns.items()}


def _starting(stages: NDArray[Any], start: StartUp, rejected: Counter[str], per_layout: int) -> NDArray[np.bool_]:
    """Which plans start, the others counted by the first stage at which they die."""

    words = {
        "oom_load": "weights do not fit the card",
        "oom_profile": "nothing of the budget is left for the KV cache",
        "kv_too_small": f"KV cache too small for one request of {show_count(start.context)} tokens",
        "oom_capture": "memory outside the engine's budget exceeds the card",
    }
    for stage, why in words.items():
        dead = int((stages == stage).sum())
        if dead:
            rejected[why] += dead * per_layout
    return np.asarray(stages == "ok")


def _kept(speed: ServingSpeed, workload: Serving, rejected: Counter[str]) -> NDArray[np.bool_]:
    """Rows worth keeping: a load that was only tried and does not fit the cache is the row before it with a queue."""
    queued = np.asarray(speed.capacity_limited)
    if workload.rate is not None:
        carried = np.asarray(speed.output_tokens_per_s) / (workload.osl or 1) >= workload.rate * (1 - 1e-9)
        if (~carried).any():
            rejected[f"cannot carry {workload.rate:g} requests a second"] += int((~carried).sum())
        return carried
    if workload.concurrency is not None:
        return np.ones_like(queued)
    if queued.any():
        rejected["more requests than the KV cache or the sequence limit holds"] += int(queued.sum())
    return ~queued
