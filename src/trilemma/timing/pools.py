"""The load of two pools, prefill and decode: the mean decode batch that carries it, and what a user then sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.disaggregation import (
    DecodeWorker,
    Flow,
    PrefillWorker,
    decode_worker,
    flow,
    prefill_worker,
)
from trilemma.timing.forward_pass import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.queueing import percentiles_s
from trilemma.timing.serving_step import ServingSpeed
from trilemma.timing.speculation import Speculation

#: Requests in flight with which a rate that cannot be kept up with is priced.
MOST_REQUESTS = 2**14
#: The smallest mean batch looked at, and how exactly (in its logarithm), in how many tries, the one sought is found.
_LEAST_BATCH, _ACCURACY, _TRIES = 2.0**-24, 1e-13, 80


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolsSpeed:
    """Steady serving by two pools: ``serving`` holds the figures of any plan, ``flow`` what runs through the pools.

    ``requests`` are in flight over both. ``carried`` is False where a rate asked for is more than they answer.
    """

    serving: ServingSpeed
    flow: Flow
    requests: Numbers
    carried: Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Pools:
    """``prefill_workers`` engines of ``prefill`` and ``decode_workers`` of ``decode``, numbers or a table of plans.

    Layouts are those of one engine, ``slots`` the requests that one attention replica of a decode worker holds. Outputs
    are of at least two tokens: a single one is all prefill.
    """

    work: ModelWork
    machine: Machine
    prefill: Layout
    decode: Layout
    prefill_workers: Numbers
    decode_workers: Numbers
    isl: Numbers
    osl: Numbers
    kv_format: Format
    slots: Numbers = np.inf
    prefix_hit: float = 0.0
    speculation: Speculation | None = None

    @property
    def gpus(self) -> Any:
        return self.prefill.gpus * self.prefill_workers + self.decode.gpus * self.decode_workers

    def at_datasheet(self) -> Pools:
        """The same pools of cards that reach their datasheet."""
        return replace(self, machine=self.machine.at_datasheet())

    def prefill_worker(self) -> PrefillWorker:
        return prefill_worker(
            self.work, self.machine, self.prefill, isl=self.isl, kv_format=self.kv_format, prefix_hit=self.prefix_hit
        )

    def decode_worker(self, batch: Numbers) -> DecodeWorker:
        return decode_worker(
            self.work, self.machine, self.decode, batch=batch, isl=self.isl, osl=self.osl, kv_format=self.kv_format,
            speculation=self.speculation,
        )  # fmt: skip

    def flow(self, prefill: PrefillWorker, decode: DecodeWorker) -> Flow:
        return flow(
            prefill, decode, prefill_workers=self.prefill_workers, decode_workers=self.decode_workers,
            machine=self.machine, gpus=self.gpus, slots=self.slots,
        )  # fmt: skip

    def speed(self, *, concurrency: Numbers | None = None, rate: Numbers | None = None) -> PoolsSpeed:
        """Latency and throughput at ``concurrency`` requests in flight, or ``rate`` requests a second.

        Little's law closes the loop: the mean decode batch is the one at which as many requests are in flight, or arrive, as
        are asked for; requests beyond what the slots hold wait. A rate that the pools do not answer is priced at
        `MOST_REQUESTS` in flight. Arrays broadcast; one plan is a table of one row.
        """
        prefill = self.prefill_worker()
        most = np.minimum(np.maximum(np.floor(np.asarray(self.slots, dtype=float)), 1.0), float(MOST_REQUESTS))
        most = most + 0.0 * self.gpus
        most = most / np.maximum(self.flow(prefill, self.decode_worker(most)).slots_used, 1.0)
        in_flight = float(MOST_REQUESTS) if concurrency is None else np.asarray(concurrency, dtype=float)
        asked = np.inf if rate is None else np.asarray(rate, dtype=float)

        def load(batch: Any) -> Any:
            found = self.flow(prefill, self.decode_worker(batch))
            return np.maximum(found.in_flight / in_flight, found.rate / asked)

        batch = where_one(load, least=_LEAST_BATCH + 0.0 * most, most=most)
        decode = self.decode_worker(batch)
        found = self.flow(prefill, decode)
        kept_up = found.rate >= asked * (1 - 1e-9) if rate is not None else np.ones(np.shape(batch), dtype=bool)
        requests = in_flight + 0.0 * batch if rate is None else np.where(kept_up, found.in_flight, in_flight)
        queued_s = np.where(batch >= most, np.maximum(requests - found.in_flight, 0.0) / found.rate, 0.0)
        serving = self.serving(prefill, decode, found, queued_s)
        return PoolsSpeed(serving=serving, flow=found, requests=requests, carried=kept_up)

    def at_batch(self, batch: Numbers) -> ServingSpeed:
        """The figures while every decode worker runs ``batch`` sequences in each attention replica."""
        prefill, decode = self.prefill_worker(), self.decode_worker(batch)
        return self.serving(prefill, decode, self.flow(prefill, decode))

    def serving(
        self, prefill: PrefillWorker, decode: DecodeWorker, found: Flow, queued_s: Numbers = 0.0
    ) -> ServingSpeed:
        """The figures as a user sees them: no prefill falls into a step, requests queue before the prefill."""
        machine, waited_s = self.machine, found.waited_s + queued_s
        ttft_s = found.ttft_s + queued_s
        ttft_p50_s, ttft_p99_s = percentiles_s(ttft_s - waited_s, waited_s)
        tokens_per_s = found.rate * self.osl
        bf16 = machine.accelerator.peak_flops.get("bf16") or machine.accelerator.peak_flops.get("fp16")
        fresh = np.asarray(self.isl, dtype=float) * (1 - self.prefix_hit)
        useful = self.work.flops_per_token() * (fresh + self.osl) * found.rate / self.gpus
        return ServingSpeed(
            ttft_s=ttft_s,
            tpot_s=decode.token_s,
            step_s=decode.step_s,
            prefill_s=prefill.alone_s,
            running=decode.batch,
            output_tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / self.gpus,
            tokens_per_s_per_user=1.0 / decode.token_s,
            mfu=useful / bf16.value if bf16 is not None else np.nan,
            capacity_limited=np.asarray(queued_s) > 0,
            ttft_p50_s=ttft_p50_s,
            ttft_p99_s=ttft_p99_s,
            gap_p50_s=decode.token_s,
            gap_p99_s=decode.token_s,
            request_s=ttft_s + decode.decode_s,
            request_p50_s=ttft_p50_s + decode.decode_s,
            request_p99_s=ttft_p99_s + decode.decode_s,
            lines=decode.lines,
            resources=decode.resources,
            first_lines={
                "request": machine.coefficients.request_s,
                "prefill": prefill.alone_s,
                "transfer": found.transfer_s,
                "steps_waited": machine.coefficients.steps_waited * decode.step_s,
                "prefills_ahead": found.waited_s,
                "slot": queued_s,
            },
            step=decode.step,
            steps_per_token=decode.steps_per_token,
            prefill=prefill.work,
            prefills_per_token=0.0,
        )


def where_one(load: Callable[[Any], Any], *, least: Any, most: Any) -> Any:
    """The batch at which the rising ``load`` is one, or ``most`` where it stays below, each row for itself.

    False position (Illinois) on the logarithm of the batch, a halving in every third turn; loads may be infinite.
    """

    def short(batch: Any) -> Any:
        value = load(batch)
        finite = np.where(np.isfinite(value), value, 0.0)
        return np.where(np.isfinite(value), (1.0 - finite) / (1.0 + finite), -1.0)

    low, high = np.log(least), np.log(most)
    at_low, at_high = short(least), short(most)
    beyond = at_high >= 0  # not even the largest batch carries the load
    middle = high
    for turn in range(_TRIES):
        apart = np.where(at_high != at_low, at_high - at_low, 1.0)
        secant = (low * at_high - high * at_low) / apart
        inside = (secant > low) & (secant < high) & (turn % 3 != 2)
        middle = np.where(inside, secant, (low + high) / 2)
        value = short(np.exp(middle))
        above = value >= 0
        at_low, at_high = np.where(above, value, at_low / 2), np.where(above, at_high / 2, value)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
        if np.all(beyond | (high - low < _ACCURACY) | (np.abs(value) < _ACCURACY)):
            break
    return np.where(beyond, most, np.exp(middle))
