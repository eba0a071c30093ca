"""A plan as the simulation runs it: step times, cache and limits of each of its engines, from the estimator's start-up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.errors import InputError, PlanWarning
from trilemma.estimate.disaggregated import check_pools
from trilemma.estimate.pool_start import start_pool
from trilemma.estimate.pooling import check_generates
from trilemma.estimate.serving_load import requests_held
from trilemma.estimate.speed import source_warnings
from trilemma.estimate.timed_plan import TimedPlan, timed_plan
from trilemma.question import ServingQuestion
from trilemma.simulation.serving.handover import TransferTimes
from trilemma.simulation.serving.plan_extras import (
    NOTHING_MORE,
    AdapterShare,
    ExtrasAsked,
    HostShare,
    adapters_of,
    ahead_of,
    host_share_of,
)
from trilemma.simulation.serving.schedulers import SchedulerRules, scheduler_of
from trilemma.simulation.serving.step_times import StepTimes

#: Tokens of a step where neither the engine nor its options say how many.
_TOKENS_A_STEP = 8192
#: Steps that a request waits in the mean where it comes while one is under way.
_HALF = 0.5
#: Share by which the need of a request may depart from so much a token and still count as that.
_LINEAR = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedPlan:
    """``engines`` alike, each with ``blocks`` of ``block_size`` tokens, ``most_running`` requests and ``tokens`` in a step.

    ``context`` is the longest request, ``longest_prompt`` the longest that a step takes where prompts are not cut. ``handling_s``
    pass before a request reaches the scheduler, ``each_s`` of them one after another; a scheduler that works ``ahead`` of busy
    cards sees it ``lag_steps`` steps later. ``host`` and ``adapters`` are there where they were asked for. Where prompts are
    prefilled in a pool of their own, ``prefill`` is that pool, and
    ``transfer`` the way of the cache from there to here.
    """

    question: ServingQuestion = field(repr=False)
    start: StartUp = field(repr=False)
    timed: TimedPlan = field(repr=False)
    rules: SchedulerRules
    times: StepTimes = field(repr=False)
    engines: int
    blocks: int
    block_size: int
    most_running: int
    tokens: int
    context: int
    longest_prompt: int
    handling_s: float
    each_s: float
    lag_steps: float
    ahead: bool
    host: HostShare | None
    adapters: AdapterShare | None
    warnings: tuple[PlanWarning, ...]
    prefill: SimulatedPlan | None = field(default=None, repr=False)
    transfer: TransferTimes | None = field(default=None, repr=False)


def simulated_plan(
    question: ServingQuestion, *, typical_tokens: float, policy: str | None = None, cache_tokens: int | None = None,
    starts: bool = False, extras: ExtrasAsked = NOTHING_MORE,
) -> SimulatedPlan:  # fmt: skip
    """The plan of ``question`` for requests of ``typical_tokens`` in the mean; ``cache_tokens`` of one engine (of decode) as it
    prints them take the place of those predicted; ``starts``: it is known to start. Raises `InputError` for a plan that does
    not."""
    pools = {pool.role: pool for pool in question.plan.pools}
    if len(pools) == 1:
        return _one_pool(
            question,
            typical_tokens=typical_tokens,
            policy=policy,
            cache_tokens=cache_tokens,
            starts=starts,
            extras=extras,
        )
    check_pools(question)
    told = {
        role: _one_pool(
            replace(question, plan=replace(question.plan, pools=(pools[role],))), typical_tokens=typical_tokens,
            policy=policy, cache_tokens=cache_tokens if role == "decode" else None, starts=starts, extras=extras,
        )
        for role in ("prefill", "decode")
    }  # fmt: skip
    prefill, decode = told["prefill"], told["decode"]
    transfer = TransferTimes.of(
        prefill.timed, decode.timed, gpus=int(question.plan.gpus), longest=min(prefill.longest_prompt, decode.context)
    )
    return replace(decode, question=question, prefill=prefill, transfer=transfer)


def _one_pool(
    question: ServingQuestion, *, typical_tokens: float, policy: str | None, cache_tokens: int | None, starts: bool,
    extras: ExtrasAsked,
) -> SimulatedPlan:  # fmt: skip
    pool = question.plan.pool
    check_generates(question.model)
    start = start_pool(pool, question)
    engine = engines.get(question.plan.engine.name)
    stage, _ = engine.likeliest_stage(start)
    if stage != "ok" and cache_tokens is None and not starts:
        raise InputError(f"the plan does not start ({stage}); see trilemma fit with the same options for what would")
    timed = timed_plan(start, question)
    ahead = ahead_of(extras, start, engine.name, pool.options.extra)
    timed = replace(timed, machine=timed.machine.working(ahead=ahead))
    rules = scheduler_of(engine.name, start.version, policy, pool.options.extra)
    running = int(np.asarray(start.max_seqs))
    tokens = rules.tokens or int(np.asarray(start.max_batched_tokens)) or _TOKENS_A_STEP
    size = max(int(np.asarray(start.pool.block_size)), 1)
    held = cache_tokens or _cache_tokens(start, typical_tokens)
    context = min(start.context, held)
    tokens = max(tokens, context) if rules.longest_in_one_step else tokens
    blocks = max(held // size, 1)
    coefficients = timed.machine.coefficients
    times = StepTimes(
        timed, most_sequences=min(running, blocks * size), most_tokens=tokens, most_context=max(context, tokens)
    )
    return SimulatedPlan(
        question=question,
        start=start,
        timed=timed,
        rules=rules,
        times=times,
        engines=pool.replicas * int(np.asarray(pool.layout.dp)),
        blocks=blocks,
        block_size=size,
        most_running=min(running, blocks * size),
        tokens=tokens,
        context=context,
        longest_prompt=context if rules.chunked else min(context, tokens),
        handling_s=float(np.asarray(coefficients.request_s)),
        each_s=float(np.asarray(coefficients.queued_request_s)),
        lag_steps=max(float(np.asarray(coefficients.steps_waited)) - _HALF, 0.0) if ahead else 0.0,
        ahead=ahead,
        host=host_share_of(extras, start, timed, engine=engine.name, block_size=size),
        adapters=adapters_of(extras, start, timed, pool.options),
        warnings=(*timed.warnings, *start.warnings, *source_warnings(timed.machine)),
    )


def _cache_tokens(start: StartUp, typical_tokens: float) -> int:
    """Tokens that the cache of one engine holds in requests of a typical length: where windows, states or strides make some
    tokens cheaper than others, as many as such requests have."""
    pool = start.pool
    if not math.isfinite(float(np.asarray(pool.concurrency))):
        return 2**40
    per_token, need = float(np.asarray(pool.bytes_per_token_per_gpu)), float(np.asarray(pool.need_bytes))
    if not math.isfinite(float(np.asarray(pool.grows_to))) and need <= per_token * start.context * (1 + _LINEAR):
        return int(np.asarray(pool.tokens))
    length = min(max(typical_tokens, 1.0), start.context)
    return max(int(float(np.asarray(requests_held(start, length=length))) * length), 1)


def slower(plan: SimulatedPlan, factor: float) -> SimulatedPlan:
    """``plan`` with every time of a step and of handling ``factor`` times as long."""
    return replace(
        plan, times=plan.times.scaled(factor), handling_s=plan.handling_s * factor, each_s=plan.each_s * factor,
        prefill=None if plan.prefill is None else slower(plan.prefill, factor),
        transfer=None if plan.transfer is None else plan.transfer.scaled(factor),
        host=None if plan.host is None else plan.host.slower(factor),
        adapters=None if plan.adapters is None else plan.adapters.slower(factor),
    )  # fmt: skip
