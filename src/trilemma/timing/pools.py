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
    prompt_cache_bytes,
)
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.queueing import percentiles_s
from trilemma.timing.serving_step import MOST_REQUESTS, ServingSpeed
from trilemma.timing.speculation import Speculation

#: The smallest mean batch looked at, how exactly (in its logarithm) the one sought is found, and in at most how many turns.
_LEAST_BATCH, _ACCURACY, _TRIES = 2.0**-24, 1e-12, 80
#: Cuts of the range at first, and figures for which a call of the physics takes hardly longer than for one.
_MOST_CUTS, _CALL_FIGURES = 32, 512
#: Logarithm of a load that counts as infinite.
_INFINITE = 20.0


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

    Layouts are those of one engine, ``slots`` the requests that one attention replica of a decode worker holds;
    ``prefill_machine`` is that of prefill engines where they exchange otherwise than those of decode; requests are ``arriving``
    one by one or follow one another. Outputs are of at least
    two tokens: a single one is all prefill.
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
    prefill_machine: Machine | None = None
    arriving: bool = False

    @property
    def gpus(self) -> Any:
        return self.prefill.gpus * self.prefill_workers + self.decode.gpus * self.decode_workers

    def at_datasheet(self) -> Pools:
        """The same pools of cards that reach their datasheet."""
        other = None if self.prefill_machine is None else self.prefill_machine.at_datasheet()
        return replace(self, machine=self.machine.at_datasheet(), prefill_machine=other)

    def prefill_worker(self) -> PrefillWorker:
        machine = self.prefill_machine or self.machine
        return prefill_worker(
            self.work, machine, self.prefill, isl=self.isl, kv_format=self.kv_format, prefix_hit=self.prefix_hit
        )

    def decode_worker(self, batch: Numbers, received_bytes: Numbers | None = None) -> DecodeWorker:
        if received_bytes is None:
            received_bytes = self.received_bytes
        return decode_worker(
            self.work, self.machine, self.decode, batch=batch, isl=self.isl, osl=self.osl, kv_format=self.kv_format,
            received_bytes=received_bytes, speculation=self.speculation,
        )  # fmt: skip

    @property
    def received_bytes(self) -> Any:
        """The cache of one prompt on each rank of a decode worker."""
        return prompt_cache_bytes(self.work, self.decode, tokens=self.isl, kv_format=self.kv_format)

    def flow(self, prefill: PrefillWorker, decode: DecodeWorker) -> Flow:
        return flow(
            prefill, decode, prefill_workers=self.prefill_workers, decode_workers=self.decode_workers,
            machine=self.machine, gpus=self.gpus, slots=self.slots, arriving=self.arriving,
        )  # fmt: skip

    def speed(self, *, concurrency: Numbers | None = None, rate: Numbers | None = None) -> PoolsSpeed:
        """Latency and throughput at ``concurrency`` requests in flight, or ``rate`` requests a second.

        Little's law closes the loop: the mean decode batch is the one at which as many requests are in flight, or arrive, as
        are asked for; requests beyond what the slots hold wait. Arrays broadcast; one plan is a table of one row. A rate that one
        plan does not keep up with is priced at `MOST_REQUESTS` in flight; such rows of a table mean nothing.
        """
        if rate is not None and not self.arriving:
            return replace(self, arriving=True).speed(rate=rate)
        prefill, received = self.prefill_worker(), self.received_bytes

        def at(batch: Any) -> tuple[DecodeWorker, Flow]:
            decode = self.decode_worker(batch, received)
            return decode, self.flow(prefill, decode)

        most = np.minimum(np.maximum(np.floor(np.asarray(self.slots, dtype=float)), 1.0), float(MOST_REQUESTS))
        most = most + 0.0 * self.gpus
        most = most / np.maximum(at(most)[1].slots_used, 1.0)
        least = _LEAST_BATCH + 0.0 * most
        if rate is not None:
            asked = np.asarray(rate, dtype=float)
            batch = where_one(lambda batch: at(batch)[1].rate / asked, least=least, most=most)
            decode, found = at(batch)
            carried = (found.rate >= asked * (1 - 1e-9)) & (found.in_flight <= MOST_REQUESTS)
            if np.ndim(carried) == 0 and not carried:
                return replace(replace(self, arriving=False).speed(concurrency=MOST_REQUESTS), carried=carried)
            requests, queued_s = found.in_flight, 0.0 * batch
        else:
            requests = np.asarray(concurrency, dtype=float) + 0.0 * most
            all_decode = requests / (np.asarray(self.decode.dp) * self.decode_workers)
            batch = where_one(
                lambda batch: at(batch)[1].in_flight / requests, least=least, most=np.minimum(most, all_decode)
            )
            decode, found = at(batch)
            beyond = np.maximum(requests - found.in_flight, 0.0) / found.rate
            queued_s = np.where(batch >= most * (1 - _ACCURACY), beyond, 0.0)
            carried = np.ones(np.shape(batch), dtype=bool)
        serving = self.serving(prefill, decode, found, queued_s)
        return PoolsSpeed(serving=serving, flow=found, requests=requests, carried=carried)

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
        ttft_p50_s, ttft_p99_s = percentiles_s(found.sure_s, waited_s)
        tokens_per_s = found.rate * self.osl
        lines, resources = _parts(decode)
        fresh = np.asarray(self.isl, dtype=float) * (1 - self.prefix_hit)
        useful_s = machine.least_computing_s(self.work, fresh=fresh, osl=self.osl)
        return ServingSpeed(
            ttft_s=ttft_s,
            tpot_s=decode.token_s,
            step_s=decode.step_s,
            prefill_s=prefill.alone_s,
            running=decode.batch,
            output_tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / self.gpus,
            tokens_per_s_per_user=1.0 / decode.token_s,
            mfu=useful_s * found.rate / self.gpus,
            capacity_limited=np.asarray(queued_s) > 0,
            slot_wait_s=(queued_s, queued_s),
            ttft_p50_s=ttft_p50_s,
            ttft_p99_s=ttft_p99_s,
            gap_p50_s=decode.token_s,
            gap_p99_s=decode.token_s,
            request_s=ttft_s + decode.decode_s,
            request_p50_s=ttft_p50_s + decode.decode_s,
            request_p99_s=ttft_p99_s + decode.decode_s,
            lines=lines,
            resources=resources,
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


def _parts(decode: DecodeWorker) -> tuple[dict[str, Any], dict[str, Any]]:
    """Lines and resources of a token's time: its part of a step, drafts included."""
    lines = {name: seconds * decode.steps_per_token for name, seconds in decode.step.lines.items()}
    resources = {name: seconds * decode.steps_per_token for name, seconds in decode.step.resources.items()}
    if np.any(decode.drafting_s):
        lines["draft"] = decode.drafting_s * decode.steps_per_token
        resources["memory_bandwidth"] = resources["memory_bandwidth"] + lines["draft"]
    return lines, resources


def where_one(load: Callable[[Any], Any], *, least: Any, most: Any) -> Any:
    """The batch at which the rising ``load`` is one, or ``most`` where it stays below, each row for itself.

    On the logarithms of both, by inverse quadratic interpolation where the last three points allow it, else by a halving; loads
    may be infinite.

    Requests, arrays (plans,). Source: Chandrupatla 1997, Advances in Engineering Software 28(3).
    """

    def excess(batch: Any) -> Any:
        return np.minimum(np.log(load(batch)), _INFINITE)

    low, high = np.log(least), np.log(most)
    cuts = max(1, min(_MOST_CUTS, _CALL_FIGURES // max(np.size(high), 1)))
    shares = (np.arange(cuts + 1) / cuts).reshape(-1, *[1] * np.ndim(high))
    tried = low + (high - low) * shares
    values = excess(np.exp(tried))
    found, done, share = high, values[-1] <= 0, 0.5  # done where not even the largest batch carries the load
    first = np.argmax(values[1:] > 0, axis=0)[None]
    (one, at_one), (other, at_other) = (
        tuple(np.take_along_axis(rows, first + step, axis=0)[0] for rows in (tried, values)) for step in (0, 1)
    )
    for _ in range(_TRIES):
        middle = one + share * (other - one)
        value = excess(np.exp(middle))
        found = np.where(done, found, middle)
        same = (value > 0) == (at_one > 0)
        third, at_third = np.where(same, one, other), np.where(same, at_one, at_other)
        other, at_other = np.where(same, other, one), np.where(same, at_other, at_one)
        one, at_one = middle, value
        apart = np.abs(other - one)
        done = done | (apart < _ACCURACY) | (np.abs(value) < _ACCURACY)
        if np.all(done):
            break
        least_share = np.minimum(_ACCURACY / 2 / np.maximum(apart, _ACCURACY), 0.5)
        share = np.clip(_next_share((one, other, third), (at_one, at_other, at_third)), least_share, 1 - least_share)
    return np.where(found == np.log(most), most, np.exp(found))


def _next_share(at: tuple[Any, Any, Any], values: tuple[Any, Any, Any]) -> Any:
    """How far from the newest of three points to the other end of the range the next one lies: where the inverse quadratic
    through all of them is monotone (criterion of Chandrupatla 1997), where that crosses zero, else half way."""
    (one, other, third), (at_one, at_other, at_third) = at, values
    with np.errstate(divide="ignore", invalid="ignore"):
        run, rise = (one - other) / (third - other), (at_one - at_other) / (at_third - at_other)
        smooth = (1 - np.sqrt(1 - run) < rise) & (rise < np.sqrt(run))
        ahead = (third - one) / (other - one)
        crossing = at_one / (at_one - at_other) * at_third / (at_third - at_other)
        crossing = crossing - ahead * at_one / (at_third - at_one) * at_other / (at_other - at_third)
    return np.where(smooth, crossing, 0.5)
