"""From passes to what a user feels: time to first token, time per output token, tokens per second and per GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.forward_pass import RESOURCES, Machine, PassTime, decode_step, prefill_pass
from trilemma.timing.operators import ModelWork

#: Short prompts are prefilled together; beyond so many tokens a pass is compute bound and nothing is saved.
_PREFILL_TOKENS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingSpeed:
    """Steady serving of one load, for one plan (numbers) or a table of plans (arrays of one shape).

    ``running`` sequences of one attention replica decode at once: the requests offered to it, or what its cache holds.
    ``lines`` sum to ``tpot_s``; ``resources`` too. ``mfu`` counts ``2 · active parameters`` FLOPs per token, prompts
    included, attention to past tokens left out, against the dense BF16 peak.
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
    lines: Mapping[str, Numbers]
    resources: Mapping[str, Numbers]

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
    rate: float | None = None,
) -> ServingSpeed:
    """Latency and throughput at ``concurrency`` requests in flight over the whole plan, with prompts of ``isl`` and
    outputs of ``osl`` tokens.

    ``slots`` is how many such requests one attention replica can hold (cache and sequence limit); the rest wait. Where
    requests arrive at ``rate`` a second no more tokens are made than they ask for.
    Decode steps pay for the prefills of others: ``TPOT = step + (B − 1)/OSL · prefill``, since while one request makes
    OSL tokens each of the other ``B − 1`` is prefilled once. With ``pp`` stages a prefill holds each for its share only.
    ``TTFT = fixed + prefill + step/2 + queue · (B − 1) · prefill + waiting for a slot`` (a request arrives in the middle of
    a step; the wait for a slot is Little's law).
    """
    pp, dp = np.asarray(layout.pp), np.asarray(layout.dp)
    offered = np.maximum(np.ceil(np.asarray(concurrency, dtype=float) / dp), 1.0)
    running = np.maximum(np.minimum(offered, np.floor(np.asarray(slots, dtype=float))), 1.0)
    cached = np.asarray(isl, dtype=float) * prefix_hit
    fresh = np.asarray(isl, dtype=float) - cached
    step = decode_step(work, machine, layout, batch=running, context=isl + np.asarray(osl) / 2, kv_format=kv_format)
    prompt = prefill_pass(work, machine, layout, tokens=fresh, cached=cached, kv_format=kv_format)
    together = np.clip(np.floor(_PREFILL_TOKENS / fresh), 1.0, running)
    shared = prefill_pass(work, machine, layout, tokens=fresh, cached=cached, prompts=together, kv_format=kv_format)
    interleaved = (running - 1) / np.asarray(osl) / together / pp
    lines, resources = _with_prefill(step, shared, interleaved)
    tpot_s = step.total_s + shared.total_s * interleaved
    each_s = shared.total_s / together / pp
    coefficients = machine.coefficients
    queue_s = coefficients.queue_share * (running - 1) * each_s
    served_s = coefficients.request_s + prompt.total_s + step.total_s / 2 + queue_s
    request_s = served_s + (np.asarray(osl) - 1) * tpot_s
    output_per_s = running * dp * np.asarray(osl) / request_s
    if rate is not None:
        output_per_s = np.minimum(output_per_s, rate * np.asarray(osl))
    ttft_s = served_s + np.maximum(offered - running, 0.0) * request_s / running
    per_gpu = output_per_s / layout.gpus
    bf16 = machine.accelerator.peak_flops.get("bf16") or machine.accelerator.peak_flops.get("fp16")
    useful = work.flops_per_token() * (fresh + np.asarray(osl)) / np.asarray(osl) * per_gpu
    return ServingSpeed(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        step_s=step.total_s,
        prefill_s=prompt.total_s,
        running=running,
        output_tokens_per_s=output_per_s,
        tokens_per_s_per_gpu=per_gpu,
        tokens_per_s_per_user=1.0 / tpot_s,
        mfu=useful / bf16.value if bf16 is not None else np.nan,
        capacity_limited=running < offered,
        lines=lines,
        resources=resources,
    )


def concurrency_for_rate(
    work: ModelWork,
    machine: Machine,
    layout: Layout,
    *,
    rate: float,
    isl: Numbers,
    osl: Numbers,
    kv_format: Format,
    slots: Numbers = np.inf,
    prefix_hit: float = 0.0,
    most: int = 2**14,
) -> Any:
    """Requests in flight when ``rate`` requests arrive a second (Little's law): at least 1, or ``most`` where the plan cannot
    keep up.

    Throughput rises with the requests in flight, so the least number that carries the rate is found by halving.
    """
    low = np.asarray(layout.dp) * 0.0
    high = low + float(most)
    for _ in range(most.bit_length()):
        middle = np.ceil((low + high) / 2)
        speed = serving_speed(
            work, machine, layout, concurrency=middle, isl=isl, osl=osl, kv_format=kv_format, slots=slots,
            prefix_hit=prefix_hit,
        )  # fmt: skip
        enough = speed.output_tokens_per_s / np.asarray(osl) >= rate
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _with_prefill(step: PassTime, prefill: PassTime, share: Any) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    lines = {**step.lines, "prefill": prefill.total_s * share}
    resources = {name: step.resources[name] + prefill.resources[name] * share for name in RESOURCES}
    return lines, resources
