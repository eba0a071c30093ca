"""From passes to what a user feels: time to first token, time per output token, tokens per second and per GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.admission import UNBOUNDED, Admission
from trilemma.timing.capping import under_cap
from trilemma.timing.forward_pass import decode_step, prefill_pass
from trilemma.timing.launching import launching_s
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.pass_time import RESOURCES, PassTime, token_parts
from trilemma.timing.queueing import waiting_s
from trilemma.timing.serving_cycle import Cycle, ReplicaLoad, cycle_of, load_of
from trilemma.timing.speculation import Speculation
from trilemma.timing.tails import Tails, tails_at_rate, tails_of_loop

#: Requests in flight with which a rate that cannot be kept up with is priced.
MOST_REQUESTS = 2**14
_CROWD = 1.25  # so much more of a crowd tells how steps grow with it
#: Cuts of a range at once, and figures for which a call of the physics takes hardly longer than for one.
_MOST_CUTS, _CALL_FIGURES = 15, 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingSpeed:
    """Steady serving of one load, for one plan (numbers) or a table of plans (arrays of one shape).

    ``running`` sequences of one attention replica decode at once: the requests offered to it, or what its cache holds.
    ``gap`` is the time between two tokens as a reader sees it (ITL), ``request`` from sending to the last token; P50 and
    P99 are closed forms (`queueing`). ``slot_wait_s`` are the least and the most of what ``ttft_s`` counts for a slot, as the
    phases of growing requests fall. ``lines`` sum to ``tpot_s``; ``resources`` too; ``first_lines`` to ``ttft_s``. A token
    is ``steps_per_token`` of ``step`` and ``prefills_per_token`` of ``prefill``, a pass of other requests' prompts. ``clock`` is
    what a power cap leaves of the cards' clocks. ``mfu``
    counts ``2 · active parameters`` FLOPs per token, prompts included (but for the head), attention to past tokens left out,
    each format against the dense peak of the units that multiply it: what a plan makes is never above it.
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
    slot_wait_s: tuple[Numbers, Numbers]
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
    clock: Numbers = 1.0

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
    admission: Admission = UNBOUNDED,
    prefix_hit: float = 0.0,
    rate: Numbers | None = None,
    speculation: Speculation | None = None,
    images_s: Numbers = 0.0,
) -> ServingSpeed:
    """Latency and throughput at ``concurrency`` requests in flight over the whole plan, with prompts of ``isl`` and
    outputs of ``osl`` tokens.

    ``admission`` says how many of them one attention replica runs at once; the rest wait. Fewer requests than replicas leave
    some idle, and a number that they do not divide is shared as evenly as it goes: the mean stands for both. Where requests
    arrive at ``rate`` a second no more tokens are made than they ask for.
    Decode steps pay for the prefills of others: ``TPOT = step + (B − 1)/OSL · prefill``, since while one request makes
    OSL tokens each of the other ``B − 1`` is prefilled once. With ``pp`` stages a prefill holds each for its share only.
    ``TTFT = request + prefill + steps waited · step + (B − 1) · (queue · prefill + per request) + waiting for a slot``;
    where requests wait, a slot that is free is filled at once. At a ``rate`` the prompts ahead are those of Poisson arrivals, not
    a share of all in flight: loops that are closed begin all at once. ``speculation`` lets a step verify drafted tokens.
    ``images_s`` are what a tower takes for the images of one prompt, in the pass before it (`trilemma.timing.vision_tower`).

    Short outputs leave few steps to prefill in. A step takes no more prompt tokens than the engine's budget, so prefills
    beyond that are waited for before the first token; and between two answers to one user all ``B`` prompts are prefilled
    and all tokens made, so a cycle takes ``B · prefill + (OSL − 1) · step`` at least, what is missing passes before the
    first token too. Prompts alone (OSL 1): ``TTFT = B · prefill``.
    """
    turn = under_cap(
        _turn, work, machine, layout, concurrency=concurrency, isl=isl, osl=osl, kv_format=kv_format, admission=admission,
        prefix_hit=prefix_hit, speculation=speculation, rate=rate, images_s=images_s,
    )  # fmt: skip
    return _speed(work, machine, turn, gpus=layout.gpus, rate=rate)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    """One turn of a load with the passes that it is made of: a decode step, one prompt alone, prompts ``shared`` by a pass."""

    load: ReplicaLoad
    cycle: Cycle
    step: PassTime
    prompt: PassTime
    own_s: Any
    shared: PassTime
    drafting_s: Any
    per_token: float
    stepping: Callable[[Any], PassTime]
    images_s: Any = 0.0
    clock: Any = 1.0

    @property
    def passes(self) -> tuple[tuple[PassTime, Any], ...]:
        """The passes that a token is made of, and how many of each."""
        return (self.step, self.per_token), (
            self.shared,
            self.load.prefills_a_token / self.load.together / self.load.pp,
        )

    def waited_s(self, running: Any) -> Any:
        """Seconds for a slot where ``running`` requests run: what a request waits for while none is free is part of that wait,
        in all it takes one turn of those in flight."""
        load, cycle = self.load, self.cycle
        within_s = np.where(load.saturated, cycle.first_s + cycle.decode_s - cycle.cycle_s, 0.0)
        return np.maximum(waiting_s(load.offered, running, cycle.cycle_s) - within_s, 0.0)

    def tails_at(self, rate: Numbers) -> Tails:
        """The percentiles where requests arrive at ``rate`` to all replicas."""
        load, more = self.load, self.load.running * _CROWD
        growing = np.log(self.stepping(more).total_s / self.step.total_s) / np.log(_CROWD)
        return tails_at_rate(
            load, self.cycle, rate=np.asarray(rate, dtype=float) / load.dp, step_s=self.step.total_s, growing=growing,
            each_s=self.shared.total_s / load.together / load.pp / self.shared.overlapped + self.images_s,
        )  # fmt: skip

    @property
    def ttft_s(self) -> Any:
        return self.cycle.first_s + self.waited_s(self.load.running)

    @property
    def output_per_s(self) -> Any:
        """Tokens a second over the whole plan: requests end as fast as those in flight take turns (Little 1961)."""
        return self.load.in_flight * self.load.osl / (self.ttft_s + self.cycle.decode_s)


def _turn(
    work: ModelWork, machine: Machine, layout: Layout, *, concurrency: Numbers, isl: Numbers, osl: Numbers,
    kv_format: Format, admission: Admission, prefix_hit: float, speculation: Speculation | None,
    prompt: PassTime | None = None, rate: Numbers | None = None, images_s: Numbers = 0.0,
) -> _Turn:  # fmt: skip
    """The turn of ``concurrency`` requests, which arrive at ``rate`` where it is stated; ``prompt`` is the pass of one prompt
    where it is known: no load changes it."""
    load = load_of(layout, concurrency=concurrency, isl=isl, osl=osl, admission=admission, prefix_hit=prefix_hit)
    guess = speculation or Speculation()
    context, verified = isl + load.osl / 2, guess.verified

    def stepping(sequences: Any) -> PassTime:
        return decode_step(
            work, machine, layout, batch=sequences, context=context, kv_format=kv_format, tokens=verified
        )

    step = stepping(load.running)
    passes: dict[str, Any] = {"tokens": load.fresh, "cached": load.cached, "kv_format": kv_format}
    alone, known = np.all(load.together == 1.0), prompt is not None
    prompt = prompt or prefill_pass(work, machine, layout, **passes)
    same = alone and (known or np.shape(prompt.total_s) == np.shape(load.together))
    shared = prompt if same else prefill_pass(work, machine, layout, prompts=load.together, **passes)
    several = load.together * load.pp * shared.overlapped  # prompts of a pass, and stages that others fill meanwhile
    own_s = np.maximum(prompt.total_s, launching_s(machine, work, load.fresh))
    per_token, drafting_s = 1.0 / guess.tokens_per_step, guess.drafting_s(step, work.layers)
    cycle = cycle_of(
        load,
        machine.coefficients,
        step_s=step.total_s,
        bare_s=(step.total_s + drafting_s) * per_token,
        prompt_s=own_s + images_s,
        each_s=shared.total_s / several + images_s,
        launched_s=shared.beside_s / several,
        prompt_flops_s=shared.computing_s / several,
        token_flops_s=step.computing_s * per_token,
        arrivals_per_s=None if rate is None else np.asarray(rate, dtype=float) / load.dp,
    )
    return _Turn(
        load=load, cycle=cycle, step=step, prompt=prompt, own_s=own_s, shared=shared, drafting_s=drafting_s, per_token=per_token,
        stepping=stepping, images_s=images_s,
    )  # fmt: skip


def _speed(work: ModelWork, machine: Machine, turn: _Turn, *, gpus: Numbers, rate: Numbers | None) -> ServingSpeed:
    """The figures of one load from its turn."""
    load, cycle, shared = turn.load, turn.cycle, turn.shared
    waited_s, ttft_s = turn.waited_s(load.running), turn.ttft_s
    least_waited_s, most_waited_s = (turn.waited_s(running) for running in load.running_range)
    together = load.prefills_a_token / load.together
    tails = tails_of_loop(load, cycle, waited_s) if rate is None else turn.tails_at(rate)
    request_s, output_per_s = ttft_s + cycle.decode_s, turn.output_per_s
    if rate is not None:
        output_per_s = np.minimum(output_per_s, np.asarray(rate) * load.osl)
    per_gpu = output_per_s / gpus
    useful_s = machine.least_computing_s(work, fresh=load.fresh, osl=load.osl)
    prefills_s = load.prefills_a_token * cycle.mixed_s
    lines, resources = token_parts(turn.step, shared, turn.drafting_s, turn.per_token, prefills_s)
    return ServingSpeed(
        ttft_s=ttft_s,
        tpot_s=cycle.tpot_s,
        prefill_s=turn.own_s,
        running=load.running,
        output_tokens_per_s=output_per_s,
        tokens_per_s_per_gpu=per_gpu,
        tokens_per_s_per_user=1.0 / cycle.tpot_s,
        mfu=useful_s / load.osl * per_gpu,
        capacity_limited=load.saturated,
        slot_wait_s=(least_waited_s, most_waited_s),
        ttft_p50_s=tails.ttft_p50_s,
        ttft_p99_s=tails.ttft_p99_s,
        gap_p50_s=tails.gap_p50_s,
        gap_p99_s=tails.gap_p99_s,
        request_s=request_s,
        request_p50_s=tails.request_p50_s,
        request_p99_s=tails.request_p99_s,
        first_lines={
            "request": machine.coefficients.request_s,
            "images": turn.images_s,
            "prefill": turn.own_s,
            "steps_waited": cycle.steps_waited_s,
            "prefills_ahead": cycle.queue_s,
            "slot": waited_s,
        },
        prefill=shared,
        prefills_per_token=together / load.pp,
        clock=turn.clock,
        step=turn.step,
        step_s=turn.step.total_s + turn.drafting_s,
        steps_per_token=turn.per_token,
        lines=lines,
        resources=resources,
    )


def concurrency_for_rate(
    work: ModelWork, machine: Machine, layout: Layout, *, rate: Numbers, isl: Numbers, osl: Numbers, kv_format: Format,
    admission: Admission = UNBOUNDED, prefix_hit: float = 0.0, speculation: Speculation | None = None,
    images_s: Numbers = 0.0, most: int = MOST_REQUESTS, near: Numbers | None = None,
) -> Any:  # fmt: skip
    """Requests in flight when ``rate`` requests arrive a second (Little's law): at least 1, or ``most`` where the plan cannot
    keep up.

    Throughput rises with the requests in flight, so the least number that carries the rate is found by cutting the range:
    into many parts at once where plans are few, since a call costs more than its figures then. ``near`` is a number that is
    likely (as many as ``rate`` has entries): tried first, with the one below.

    Source: Little 1961, ``L = λ·W``.
    """
    plans = (layout.gpus, layout.ep, admission.most, rate, isl, osl)
    low = np.zeros(np.broadcast_shapes(*(np.shape(one) for one in plans)))
    high = low + float(most)
    parts = 1 + max(1, min(_MOST_CUTS, _CALL_FIGURES // max(low.size, 1)))
    shares = (np.arange(1, parts) / parts).reshape(-1, *[1] * low.ndim)
    prompt = None
    tried = np.ceil(low + (high - low) * shares) if near is None else np.stack([np.maximum(near - 1.0, 1.0), near])
    while np.any(high - low > 1):
        turn = under_cap(
            _turn, work, machine, layout, concurrency=tried, isl=isl, osl=osl, kv_format=kv_format, admission=admission,
            prefix_hit=prefix_hit, speculation=speculation, prompt=prompt, rate=rate, images_s=images_s,
        )  # fmt: skip
        prompt = turn.prompt if machine.power_cap is None else None  # a cap's clock changes with the load
        enough = turn.output_per_s / np.asarray(osl) >= rate
        high = np.where(enough, tried, high).min(axis=0)
        low = np.where(enough | (tried >= high), low, tried).max(axis=0)
        tried = np.ceil(low + (high - low) * shares)
    return high
