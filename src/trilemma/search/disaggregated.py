"""Plans with a prefill and a decode pool, sized so that the rates of the two match.

What is left of both sides (`pool_sides`) is joined in every number of workers that the GPUs hold; the best join of each pair of
layouts, and those on the front of throughput against speed, are then priced exactly, at a whole number of requests in flight.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trilemma.search.aggregated import QUEUED
from trilemma.search.pareto import front_of_two
from trilemma.search.pool_rules import sides_refused
from trilemma.search.pool_sides import OTHERS_BETTER, Joins, Sides, best_of_each
from trilemma.search.question import (
    DEGREES,
    FormatChoice,
    PlanColumns,
    PlanTally,
    SearchQuestion,
    StartedEngines,
    StartTable,
    limited,
    sequence_limit,
    started,
)
from trilemma.search.space import Layouts, take
from trilemma.search.targets import missed_words, misses, overshoot
from trilemma.timing.pools import Pools

#: Numbers of prefill workers that are tried: every one up to the first figure, then in steps of the second.
_EVERY, _STEP = 16, 1.15
#: Joins of one choice that are priced exactly, and prefill engines that are tried for a load.
_MOST, _MOST_ENGINES = 96, 2**14
#: Joins under a stated load that are all priced exactly.
_MANY = 256
#: Requests in flight that are priced exactly, over those of the batch: up to the next batch tried.
_BETWEEN = (1.0, 1.04, 1.08)
_PREFILL_BEHIND = "prefill cannot keep up with decode"
_MORE_GPUS = "more GPUs than a plan shown"


def disaggregated_rows(
    choice: FormatChoice, start: StartTable, layouts: Layouts, question: SearchQuestion, tally: PlanTally
) -> PlanColumns:
    """The rows of one choice; none for outputs of a single token, which leave decode nothing to do."""
    tally.unlawful(layouts, 1)
    running = _joinable(started(choice, start, layouts, question, tally, each=1), question, tally)
    if (question.workload.osl or 0) < 2 or not len(running):
        return _priced(choice, running, question, tally, Joins.none())
    sides = Sides(running, choice.precision.model, question, tally)
    if not question.stated:
        joins = _matched(sides, question, tally)
    elif question.free:
        joins = _enough(sides, question, tally)
    else:
        joins = _stated(sides, question, tally)
    return _priced(choice, running, question, tally, joins)


def _joinable(running: StartedEngines, question: SearchQuestion, tally: PlanTally) -> StartedEngines:
    """The engines that may be one of two pools; the others are counted."""
    left = np.ones(len(running), dtype=bool)
    for why, refused in sides_refused(question.engine, running.layout).items():
        newly = left & refused
        tally.lawful(int(newly.sum()))
        tally.lost(why, int(newly.sum()))
        left &= ~newly
    return running if left.all() else running.only(left)


def _all_joins(sides: Sides, question: SearchQuestion, *, loads: bool) -> Joins:
    """Every join that the GPUs hold. Where their number is given, decode takes all that prefill leaves. Without ``loads`` each
    pair of layouts comes once."""
    most = question.cluster.gpus
    engines = _numbers(most)
    rows = np.arange(len(sides.decode_at))
    if not loads:
        _, rows = np.unique(sides.decode_at, return_index=True)
    left = most - sides.prefill_gpus[:, None] * engines
    workers = left[:, None, :] // sides.decode_gpus[rows][None, :, None] * sides.allowed[:, rows, None]
    prefill, decode, at = np.nonzero(workers >= 1)
    full = Joins(prefill=prefill, decode=rows[decode], engines=engines[at], workers=workers[prefill, decode, at])
    if not question.free:
        return full
    again = np.repeat(np.arange(len(full)), full.workers)
    ends = np.cumsum(full.workers)
    return replace(full.take(again), workers=np.arange(len(again)) - np.repeat(ends - full.workers, full.workers) + 1)


def _numbers(most: int) -> NDArray[np.int64]:
    found = list(range(1, min(most, _EVERY + 1)))
    while found and found[-1] * _STEP < most - 1:
        found.append(int(np.ceil(found[-1] * _STEP)))
    return np.array([number for number in found if number < most], dtype=np.int64)


def _matched(sides: Sides, question: SearchQuestion, tally: PlanTally) -> Joins:
    """Without a load: the joins worth pricing, at the requests in flight of their batch."""
    joins = _all_joins(sides, question, loads=True)
    tally.lawful(len(joins))
    tally.fitting += len(joins)
    found = sides.joined(joins)
    busy, full = np.asarray(found.prefill_busy) >= 1.0, np.asarray(found.slots_used) > 1.0
    tally.lost(_PREFILL_BEHIND, int(busy.sum()))
    tally.lost(QUEUED, int((full & ~busy).sum()))
    rows = np.flatnonzero(~busy & ~full)
    joins = joins.take(rows)
    tpot_s, ttft_s = np.asarray(sides.decode.token_s)[joins.decode], np.asarray(found.ttft_s)[rows]
    per_gpu = np.asarray(found.rate)[rows] * (question.workload.osl or 1) / question.owned(sides.gpus(joins))
    good = np.ones(len(rows), dtype=bool)
    missing = list(misses(tpot_s, ttft_s, question.workload, question.margin))
    for _, missed in missing:
        good &= ~missed
    score = np.where(good, per_gpu, -overshoot(tpot_s, ttft_s, question.workload, question.margin))
    front = np.flatnonzero(good)[front_of_two(np.column_stack([per_gpu[good], -tpot_s[good]]))]
    spread = front[np.unique(np.linspace(0, len(front) - 1, _MOST).astype(np.int64))] if len(front) else front
    chosen = np.union1d(best_of_each(sides.pair(joins), score, most=_MOST), spread)
    left = np.ones(len(rows), dtype=bool)
    left[chosen] = False
    for why, missed in missing:
        tally.lost(why, int((missed & left).sum()))
    tally.worse += int((good & left).sum())
    at_batch = np.maximum(np.floor(np.asarray(found.in_flight)[rows][chosen] + 1e-9), 1.0)
    tries = np.unique(
        [(row, np.floor(requests * more)) for row, requests in zip(chosen, at_batch, strict=True) for more in _BETWEEN],
        axis=0,
    ).reshape(-1, 2)
    tally.lawful(len(tries) - len(chosen))
    tally.fitting += len(tries) - len(chosen)
    return replace(joins.take(tries[:, 0].astype(np.int64)).of_layouts(sides), requests=tries[:, 1])


def _stated(sides: Sides, question: SearchQuestion, tally: PlanTally) -> Joins:
    """With a load and a number of GPUs: every join, or of very many the best of each pair of layouts, by the smallest batch
    tried that carries the load."""
    joins = _all_joins(sides, question, loads=False)
    tally.lawful(len(joins))
    tally.fitting += len(joins)
    if len(joins) <= _MANY:
        return joins.of_layouts(sides)
    workload, tried = question.workload, _all_joins(sides, question, loads=True)
    each = np.asarray(sides.decode.rate)[tried.decode]
    if workload.rate is None:
        concurrency, found = float(workload.concurrency or 1), sides.joined(tried)
        carried = np.asarray(found.in_flight) >= concurrency
        busy = np.maximum(np.asarray(found.prefill_busy), 1.0)
        # a batch above the load answers as much more as it has in flight
        score = each * tried.workers / busy * np.where(busy > 1.0, 1.0, np.minimum(concurrency / found.in_flight, 1.0))
    else:
        found = sides.joined(tried, offered=workload.rate / each, arriving=True)
        carried = (each * tried.workers >= workload.rate) & (np.asarray(found.prefill_busy) < 1.0)
        answer_s = np.asarray(found.ttft_s) + (workload.osl or 1) * np.asarray(sides.decode.token_s)[tried.decode]
        score = np.where(carried, -answer_s, -np.inf)
    batch = np.asarray(sides.decode.batch)[tried.decode]
    join = sides.pair(tried) * (question.cluster.gpus + 1) + tried.engines
    first = best_of_each(join, np.where(carried, -batch, batch - 1e9), most=len(tried))
    chosen = first[best_of_each(sides.pair(tried)[first], score[first], most=_MOST)]
    tally.worse += len(joins) - len(chosen)
    return tried.take(chosen).of_layouts(sides)


def _enough(sides: Sides, question: SearchQuestion, tally: PlanTally) -> Joins:
    """With a load and any number of GPUs: for each pair of layouts the fewest engines that carry it within the targets.

    Decode engines run the largest batch that does, prefill engines then see no more requests a second than if none waited
    for them; so more load never takes fewer GPUs.
    """
    workload = question.workload
    prefill, decode = np.nonzero(sides.allowed)
    ones = np.ones(len(prefill), dtype=np.int64)
    pairs = Joins(prefill=prefill, decode=decode, engines=ones, workers=ones)
    tally.lawful(len(pairs))
    tally.fitting += len(pairs)
    alone = sides.joined(pairs)
    each = np.asarray(alone.rate)  # what one decode engine answers, or has in flight
    if workload.rate is None:
        each = each * (np.asarray(sides.decode.decode_s)[decode] + alone.sure_s)
    full = np.asarray(alone.slots_used) > 1.0
    tally.lost(QUEUED, int(full.sum()))
    rows = np.flatnonzero(~full)
    fullest = rows[best_of_each(sides.pair(pairs)[rows], each[rows], most=len(rows))]
    tally.lost(OTHERS_BETTER, len(rows) - len(fullest))
    load = workload.rate if workload.rate is not None else float(workload.concurrency or 1)
    joins = replace(pairs.take(fullest), workers=np.ceil(load / each[fullest] - 1e-9).astype(np.int64))
    joins, enough = _with_prefill(sides, joins, question)
    tally.lost(missed_words("ttft", workload.ttft_ms or 0, question.confidence), int((~enough).sum()))
    joins = joins.take(enough)
    chosen = best_of_each(sides.pair(joins), -sides.gpus(joins).astype(float), most=_MOST)
    tally.lost(_MORE_GPUS, len(joins) - len(chosen))
    return joins.take(chosen).of_layouts(sides)


def _with_prefill(sides: Sides, joins: Joins, question: SearchQuestion) -> tuple[Joins, NDArray[np.bool_]]:
    """(``joins`` with the fewest prefill engines that keep up and hold the target of the first token, whether any do)."""
    target_s = (question.workload.ttft_ms or np.inf) / 1e3 / question.margin.ttft
    most = np.full(len(joins), _MOST_ENGINES, dtype=np.int64)
    unlimited = _pools(sides.running, replace(joins, engines=most).of_layouts(sides), question)
    rate = question.workload.rate or unlimited.speed(concurrency=question.workload.concurrency).flow.rate
    offered = rate / np.asarray(sides.decode.rate)[joins.decode]

    def holds(engines: NDArray[np.int64]) -> NDArray[np.bool_]:
        tried = replace(joins, engines=np.maximum(engines, 1))
        found = sides.joined(tried, offered=offered, arriving=question.workload.rate is not None)
        return np.asarray((found.prefill_busy < 1.0) & (found.ttft_s <= target_s) & (engines > 0))

    low, high = np.zeros(len(joins), dtype=np.int64), most
    possible = holds(high)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        good = holds(middle)
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    return replace(joins, engines=high), possible


def _pools(running: StartedEngines, joins: Joins, question: SearchQuestion) -> Pools:
    """The pools of ``joins`` of layouts as timing takes them."""
    workload = question.workload
    return Pools(
        work=running.work,
        machine=running.machine,
        prefill=take(running.layout, joins.prefill),
        decode=take(running.layout, joins.decode),
        prefill_workers=joins.engines,
        decode_workers=joins.workers,
        isl=workload.isl or 0,
        osl=workload.osl or 0,
        kv_format=running.kv_format,
        slots=running.admission.holds[joins.decode],
        prefix_hit=workload.prefix_hit,
    )


def _priced(
    choice: FormatChoice, running: StartedEngines, question: SearchQuestion, tally: PlanTally, joins: Joins
) -> PlanColumns:
    """The rows of ``joins`` of layouts, each at its own load or at the one that is stated, decode told to run no more."""
    workload, pools = question.workload, _pools(running, joins, question)
    concurrency = joins.requests if joins.requests is not None else workload.concurrency
    # requests that arrive are in flight as the pools answer them; how many is known where their number is stated
    asked = concurrency if workload.rate is None else pools.speed(rate=workload.rate).requests
    admission, used = running.admission.take(joins.decode), running.used[joins.decode]
    requests = np.broadcast_to(np.asarray(asked, dtype=float), len(joins))
    limit = sequence_limit(requests / (joins.workers * np.asarray(pools.decode.dp)), admission.most, question)
    admission, used = limited(choice, pools.decode, admission, used, limit, question)
    pools = replace(pools, slots=admission.holds)
    found = pools.speed(concurrency=concurrency, rate=workload.rate)
    speed, carried = found.serving, np.broadcast_to(found.carried, len(joins))
    tally.lost(f"cannot carry {workload.rate or 0:g} requests a second", int((~carried).sum()))
    gpus = np.asarray(pools.gpus)
    columns = {
        **{name: np.asarray(getattr(pools.decode, name)) for name in DEGREES},
        **{f"prefill_{name}": np.asarray(getattr(pools.prefill, name)) for name in DEGREES},
        "replicas": joins.workers,
        "prefill_replicas": joins.engines,
        "gpus": gpus,
        "requests": np.broadcast_to(np.asarray(found.requests, dtype=float), len(joins)),
        "ttft_s": np.asarray(speed.ttft_s),
        "held_ttft_s": np.asarray(speed.ttft_s),
        "tpot_s": np.asarray(speed.tpot_s),
        "per_gpu": np.asarray(speed.output_tokens_per_s) / question.owned(gpus),
        "per_user": np.asarray(speed.tokens_per_s_per_user),
        "limit": limit,
        "used": np.maximum(used, running.used[joins.prefill]),
    }
    return {name: column[carried] for name, column in columns.items()}
