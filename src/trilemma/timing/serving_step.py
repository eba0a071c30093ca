"""From passes to what a user feels: time to first token, time per output token, tokens per second and per GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.coefficients import spec_sheet
from trilemma.timing.forward_pass import RESOURCES, Machine, PassTime, decode_step, prefill_pass
from trilemma.timing.operators import ModelWork
from trilemma.timing.queueing import percentiles_s, token_gap_percentiles_s, waiting_s
from trilemma.timing.speculation import Speculation

#: Short prompts are prefilled together; beyond so many tokens a pass is compute bound and nothing is saved.
_PREFILL_TOKENS = 2048
#: Requests in flight with which a rate that cannot be kept up with is priced.
MOST_REQUESTS = 2**14


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingSpeed:
    """Steady serving of one load, for one plan (numbers) or a table of plans (arrays of one shape).

    ``running`` sequences of one attention replica decode at once: the requests offered to it, or what its cache holds.
    ``gap`` is the time between two tokens as a reader sees it (ITL), ``request`` from sending to the last token; P50 and
    P99 are closed forms (`queueing`). ``lines`` sum to ``tpot_s``; ``resources`` too; ``first_lines`` to ``ttft_s``. A token
    is ``steps_per_token`` of ``step`` and ``prefills_per_token`` of ``prefill``, a pass of other requests' prompts. ``mfu``
    counts ``2 · active parameters`` FLOPs per token, prompts included, attention to past tokens left out, against the dense
    BF16 peak.
    """

    ttft_s: Numbers
    tpot_s: Numbers
    step_s: Numbers
    prefill_s: Numbers
    running: Numbers
    output_tokens_per_s: Numbers
    tokens_per_s_per_gpu: Numbers
    tokens_per_s_per_user: Numbers
    mfu: Numbers
    capacity_limited: Numbers
    ttft_p50_s: Numbers
    ttft_p99_s: Numbers
    gap_p50_s: Numbers
    gap_p99_s: Numbers
    request_s: Numbers
    request_p50_s: Numbers
    request_p99_s: Numbers
    lines: Mapping[str, Numbers]
    resources: Mapping[str, Numbers]
    first_lines: Mapping[str, Numbers]
    step: PassTime
    steps_per_token: float
    prefill: PassTime
    prefills_per_token: Numbers

    def bottleneck(self) -> Any:
        """The resource that binds most of a token's time (name, or array of names); "capacity" where the cache does."""
        stacked = np.stack(np.broadcast_arrays(*(np.asarray(self.resources[name]) for name in RESOURCES)))
        names = np.asarray(RESOURCES)[stacked.argmax(axis=0)]
        return np.where(np.asarray(self.capacity_limited), "capacity", names)


def serving_speed(
    work: ModelWork,
    machine: Machine,
    layout: Layout,
    *,
    concurrency: Numbers,
    isl: Numbers,
    osl: Numbers,
    kv_format: Format,
    slots: Numbers = np.inf,
    prefix_hit: float = 0.0,
    rate: Numbers | None = None,
    speculation: Speculation | None = None,
) -> ServingSpeed:
    """Latency and throughput at ``concurrency`` requests in flight over the whole plan, with prompts of ``isl`` and
    outputs of ``osl`` tokens.

    ``slots`` is how many such requests one attention replica can hold (cache and sequence limit); the rest wait. Where
    requests arrive at ``rate`` a second no more tokens are made than they ask for.
    Decode steps pay for the prefills of others: ``TPOT = step + (B − 1)/OSL · prefill``, since while one request makes
    OSL tokens each of the other ``B − 1`` is prefilled once. With ``pp`` stages a prefill holds each for its share only.
    ``TTFT = request + prefill + steps waited · step + (B − 1) · (queue · prefill + per request) + waiting for a slot``;
    where requests wait, a slot that is free is filled at once. ``speculation`` lets a step verify drafted tokens.

    Short outputs leave few steps to prefill in. A step takes no more prompt tokens than the engine's budget, so prefills
    beyond that are waited for before the first token; and between two answers to one user all ``B`` prompts are prefilled
    and all tokens made, so a cycle takes ``B · prefill + (OSL − 1) · step`` at least, what is missing passes before the
    first token too. Prompts alone (OSL 1): ``TTFT = B · prefill``.
    """
    load = _load(layout, concurrency=concurrency, isl=isl, osl=osl, slots=slots, prefix_hit=prefix_hit)
    host = machine.coefficients
    guess = speculation or Speculation()
    step = decode_step(
        work,
        machine,
        layout,
        batch=load.running,
        context=isl + load.osl / 2,
        kv_format=kv_format,
        tokens=guess.verified,
    )
    per_token = 1.0 / guess.tokens_per_step
    drafting_s = guess.drafting_s(step, work.layers)
    passes = {"tokens": load.fresh, "cached": load.cached, "kv_format": kv_format}
    prompt = prefill_pass(work, machine, layout, **passes)
    shared = prefill_pass(work, machine, layout, prompts=load.together, **passes)
    each_s = shared.total_s / load.together / load.pp
    bare_s = (step.total_s + drafting_s) * per_token
    mixed_s = each_s * host.interference  # what a prefill adds to the step that it is mixed into
    a_token = _prefills_a_token(load)
    tpot_s = bare_s + a_token * mixed_s
    decode_s = (load.osl - 1) * tpot_s
    begun_s = prompt.total_s + host.steps_waited * step.total_s
    bunched_s = (load.running - 1) * (host.queue_share * each_s + host.queued_request_s)
    at_once_s = np.where(load.saturated, begun_s, host.request_s + begun_s + bunched_s)
    outside_s = (load.osl - 1) * ((load.running - 1) / load.osl - a_token) * mixed_s
    work_s = each_s / load.osl + (1 - 1 / load.osl) * mixed_s  # a prefill is mixed as far as there are steps
    least_s = load.running * work_s + (load.osl - 1) * bare_s
    cycle_s = np.maximum(at_once_s + outside_s + decode_s, least_s)
    crowded_s = cycle_s - at_once_s - decode_s  # prefills of others that no step had room for
    queue_s = bunched_s + crowded_s
    first_s = host.request_s + begun_s + queue_s
    lines, resources = _parts(step, shared, drafting_s, per_token, a_token * mixed_s)
    output_per_s = load.running * load.dp * load.osl / cycle_s
    if rate is not None:
        output_per_s = np.minimum(output_per_s, np.asarray(rate) * load.osl)
    waited_s = waiting_s(load.offered, load.running, cycle_s)
    ttft_s = first_s + waited_s
    ttft_p50_s, ttft_p99_s = percentiles_s(first_s - bunched_s, bunched_s + waited_s)
    gap_p50_s, gap_p99_s = token_gap_percentiles_s(bare_s, mixed_s * load.together, a_token / load.together)
    per_gpu = output_per_s / layout.gpus
    bf16 = machine.accelerator.peak_flops.get("bf16") or machine.accelerator.peak_flops.get("fp16")
    useful = work.flops_per_token() * (load.fresh + load.osl) / load.osl * per_gpu
    return ServingSpeed(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        step_s=step.total_s + drafting_s,
        prefill_s=prompt.total_s,
        running=load.running,
        output_tokens_per_s=output_per_s,
        tokens_per_s_per_gpu=per_gpu,
        tokens_per_s_per_user=1.0 / tpot_s,
        mfu=useful / bf16.value if bf16 is not None else np.nan,
        capacity_limited=load.saturated,
        ttft_p50_s=ttft_p50_s,
        ttft_p99_s=ttft_p99_s,
        gap_p50_s=gap_p50_s,
        gap_p99_s=gap_p99_s,
        request_s=ttft_s + decode_s,
        request_p50_s=ttft_p50_s + decode_s,
        request_p99_s=ttft_p99_s + decode_s,
        lines=lines,
        resources=resources,
        first_lines={
            "request": host.request_s,
            "prefill": prompt.total_s,
            "steps_waited": host.steps_waited * step.total_s,
            "prefills_ahead": queue_s,
            "slot": waited_s,
        },
        step=step,
        steps_per_token=per_token,
        prefill=shared,
        prefills_per_token=a_token / load.together / load.pp,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Load:
    """What one attention replica is asked to do; numbers or arrays of one shape."""

    pp: Any
    dp: Any
    offered: Any
    running: Any
    osl: Any
    fresh: Any
    cached: Any
    together: Any

    @property
    def saturated(self) -> Any:
        return self.running < self.offered


def _load(
    layout: Layout, *, concurrency: Numbers, isl: Numbers, osl: Numbers, slots: Numbers, prefix_hit: float
) -> _Load:
    dp = np.asarray(layout.dp)
    offered = np.maximum(np.ceil(np.asarray(concurrency, dtype=float) / dp), 1.0)
    running = np.maximum(np.minimum(offered, np.floor(np.asarray(slots, dtype=float))), 1.0)
    cached = np.asarray(isl, dtype=float) * prefix_hit
    fresh = np.asarray(isl, dtype=float) - cached
    return _Load(
        pp=np.asarray(layout.pp),
        dp=dp,
        offered=offered,
        running=running,
        osl=np.asarray(osl, dtype=float),
        fresh=fresh,
        cached=cached,
        together=prompts_together(fresh, waiting=running),
    )


def prompts_together(fresh: Numbers, *, waiting: Numbers = np.inf) -> Any:
    """How many prompts of ``fresh`` tokens run in one pass where ``waiting`` are there to be run.

    Numbers or arrays that broadcast. A definition of ours: beyond 2,048 tokens a pass is bound by its arithmetic.
    """
    return np.clip(np.floor(_PREFILL_TOKENS / np.asarray(fresh, dtype=float)), 1.0, waiting)


def _prefills_a_token(load: _Load) -> Any:
    """Prompts of others that are prefilled between two tokens of a request: all of them over its output, as far as the steps
    have room."""
    room = np.maximum(load.together, spec_sheet()["mixed_step"]["prompt_tokens"] / load.fresh)
    return np.minimum((load.running - 1) / load.osl, room)


def concurrency_for_rate(
    work: ModelWork,
    machine: Machine,
    layout: Layout,
    *,
    rate: Numbers,
    isl: Numbers,
    osl: Numbers,
    kv_format: Format,
    slots: Numbers = np.inf,
    prefix_hit: float = 0.0,
    speculation: Speculation | None = None,
    most: int = MOST_REQUESTS,
) -> Any:
    """Requests in flight when ``rate`` requests arrive a second (Little's law): at least 1, or ``most`` where the plan cannot
    keep up.

    Throughput rises with the requests in flight, so the least number that carries the rate is found by halving.

    Source: Little 1961, ``L = λ·W``.
    """
    low = np.asarray(layout.dp) * 0.0
    high = low + float(most)
    for _ in range(most.bit_length()):
        middle = np.ceil((low + high) / 2)
        speed = serving_speed(
            work, machine, layout, concurrency=middle, isl=isl, osl=osl, kv_format=kv_format, slots=slots,
            prefix_hit=prefix_hit, speculation=speculation,
        )  # fmt: skip
        enough = speed.output_tokens_per_s / np.asarray(osl) >= rate
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _parts(
    step: PassTime, prefill: PassTime, drafting_s: Any, per_token: Any, prefill_s: Any
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Lines and resources of a token's time: its part of a step, and of the prefills of others."""
    lines: dict[str, Any] = {name: seconds * per_token for name, seconds in step.lines.items()}
    resources: dict[str, Any] = {name: seconds * per_token for name, seconds in step.resources.items()}
    if np.any(drafting_s):
        lines["draft"] = drafting_s * per_token
        resources["memory_bandwidth"] = resources["memory_bandwidth"] + lines["draft"]
    lines["prefill"] = prefill_s
    share = prefill_s / prefill.total_s
    for resource, seconds in prefill.resources.items():
        resources[resource] = resources[resource] + seconds * share
    return lines, resources
