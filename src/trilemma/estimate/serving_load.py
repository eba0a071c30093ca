"""The load that a plan is judged for: what was asked, what is assumed where nothing was, how much of it runs at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.errors import InputError, PlanWarning
from trilemma.estimate.estimate import SpeedEstimate
from trilemma.plans import Plan
from trilemma.quantities import counted, show_count
from trilemma.timing.admission import Admission
from trilemma.workloads import SAMPLING, Serving

#: The load that is assumed, and said to be, where none is stated: chat lengths, a few dozen readers.
ASSUMED_ISL, ASSUMED_OSL, ASSUMED_CONCURRENCY = 1024, 1024, 32


def stated(
    workload: Serving, start: StartUp, *, readers: int = ASSUMED_CONCURRENCY
) -> tuple[Serving, tuple[PlanWarning, ...]]:
    """The load with gaps filled, of requests at once ``readers`` or what the cache holds, and a warning for what was filled.

    Raises `InputError` for prompts of a length that leaves no token to answer with, where no output length is stated.
    """
    assumed = []
    load = workload
    if load.isl is None:
        isl = min(ASSUMED_ISL, max(start.context // 2, 1))
        load = replace(load, isl=isl, osl=load.osl or min(ASSUMED_OSL, isl))
        assumed.append(f"prompts of {show_count(isl)} and outputs of {counted(load.osl or 0, 'token')}")
    elif load.osl is None:
        if load.isl >= start.context:
            raise InputError(
                f"`isl` {load.isl} leaves no room for output in a context of {start.context} tokens; give shorter prompts, or a"
                " larger `context` where the model has it"
            )
        load = replace(load, osl=min(ASSUMED_OSL, start.context - load.isl))
        assumed.append(f"outputs of {counted(load.osl or 0, 'token')}")
    if load.concurrency is None and load.rate is None:
        full = requests_held(start, length=(load.isl or 0) + (load.osl or 0))
        held = int(Admission(at_full_length=full, most=start.max_seqs).never_waits)
        load = replace(load, concurrency=max(1, min(readers, held)))
        assumed.append("one request at once" if load.concurrency == 1 else f"{load.concurrency} requests at once")
    if load.sampling == SAMPLING[0]:
        assumed.append(f"{load.sampling} sampling")
    if not assumed:
        return load, ()
    words = " and ".join(part for part in (", ".join(assumed[:-1]), assumed[-1]) if part)
    return load, (PlanWarning(code="assumed-load", message=f"speed assumes {words}"),)


def readers_of(plan: Plan) -> int:
    """How many requests at once are assumed: one where the engine serves one reader, or as many as it was given slots for."""
    if not engines.traits_of(plan.engine.name).one_reader:
        return ASSUMED_CONCURRENCY
    return min(int(plan.pool.options.max_seqs or 1), ASSUMED_CONCURRENCY)


def admission_of(start: StartUp, engine: str, *, isl: int, osl: int) -> Admission:
    """How many requests of ``isl`` + ``osl`` tokens one replica runs at once: what its cache holds half way through their
    outputs and at full length, and what its scheduler admits. Broadcasts over plans."""
    return Admission(
        half_way=requests_held(start, length=isl + osl / 2),
        at_full_length=requests_held(start, length=isl + osl),
        most=start.max_seqs,
        reserves=engines.traits_of(engine).admits_whole,
    )


def requests_held(start: StartUp, *, length: float) -> Any:
    """Requests of ``length`` tokens that the cache of one replica holds, not rounded.

    The engine prints how many fit of full context. A shorter one needs less by what grows with its tokens; what does not
    (states, windows) stays.
    """
    pool = start.pool
    need_bytes, per_token = start.request_bytes, np.asarray(pool.bytes_per_token_per_gpu, dtype=float)
    spared = np.minimum(start.context, pool.grows_to) - np.minimum(length, pool.grows_to)
    shorter = np.maximum(need_bytes - per_token * spared, per_token * min(length, 1.0))
    held = np.asarray(pool.concurrency) * (need_bytes / np.where(shorter > 0, shorter, 1.0))
    return np.where(shorter > 0, held, np.inf)


def overload_warnings(figures: SpeedEstimate, load: Serving, *, replicas: int | None = None) -> tuple[PlanWarning, ...]:
    """That more requests arrive than the plan answers, so that none of its times to the first token is steady."""
    most = figures.most_requests_per_s
    if most is None or load.rate is None or load.rate <= most.value * (1 + 1e-9):
        return ()
    enough = (
        ""
        if replicas is None
        else f"; {int(np.ceil(load.rate / most.value * replicas - 1e-9))} replicas would carry them"
    )
    message = (
        f"{load.rate:g} requests a second are more than this plan carries: at most {most.value:.3g}"
        f" ({most.low:.3g} – {most.high:.3g}), the queue grows without end{enough}"
    )
    return (PlanWarning(code="overloaded", message=message),)
