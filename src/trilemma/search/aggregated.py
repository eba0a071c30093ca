"""Plans without pools of their own for prefill and decode: one engine, or several side by side that share the load evenly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.plans import Layout
from trilemma.search.question import (
    DEGREES,
    PREFILL_DEGREES,
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
from trilemma.search.space import Layouts
from trilemma.search.targets import lateness, misses
from trilemma.timing import ServingSpeed, concurrency_for_rate, serving_speed
from trilemma.timing.admission import Admission

#: Into how many steps the way from a load that keeps to the targets to the next one tried is cut.
_STEPS = 4
#: Counts of engines tried at once for a layout, and rows for which a call takes hardly longer than for one.
_MOST_CUTS, _ROWS_A_CALL = 15, 128
QUEUED = "more requests than the KV cache or the sequence limit holds"


def aggregated_rows(
    choice: FormatChoice, start: StartTable, layouts: Layouts, question: SearchQuestion, tally: PlanTally
) -> PlanColumns:
    """The rows of every layout: one where the load is stated, else one for each load tried.

    Where the number of GPUs is free and the load is stated, as many engines stand side by side as keep to the targets.
    """
    each = 1 if question.stated else len(question.batches)
    tally.unlawful(layouts, each)
    running = started(choice, start, layouts, question, tally, each=each)
    if not question.stated:
        return _loads_tried(running, question, tally)
    if question.free:
        return _load_carried(choice, running, _enough(choice, running, question), question, tally)
    return _load_carried(choice, running, running.replicas, question, tally)


def _loads_tried(running: StartedEngines, question: SearchQuestion, tally: PlanTally) -> PlanColumns:
    """Each layout under each load of a replica; a load that the cache does not hold is the one before it with a queue."""
    rows, batch = _grid(len(running), question)
    layout, replicas, admission, used = running.take(rows)
    speed = _speed(running, layout, batch * layout.dp, admission, question)
    queued = np.asarray(speed.capacity_limited)
    tally.lawful(len(rows))
    tally.fitting += len(rows)
    tally.lost(QUEUED, int(queued.sum()))
    limit = sequence_limit(batch, admission.most, question)
    columns = _columns(speed, layout, replicas, batch * layout.dp * replicas, used, question, limit=limit)
    kept = {name: column[~queued] for name, column in columns.items()}
    finer = _between(running, rows[~queued], batch[~queued], kept, question, tally)
    return {name: np.concatenate([kept[name], finer[name]]) for name in kept}


def _between(
    running: StartedEngines,
    rows: NDArray[Any],
    batch: NDArray[np.float64],
    grid: PlanColumns,
    question: SearchQuestion,
    tally: PlanTally,
) -> PlanColumns:
    """Loads between the largest of each layout that keeps to the targets and the next that was tried."""
    good = np.ones(len(rows), dtype=bool)
    for _, missed in misses(grid["tpot_s"], grid["held_ttft_s"], question.workload, question.margin):
        good &= ~missed
    most = np.zeros(len(running))
    np.maximum.at(most, rows[good], batch[good])
    tried = np.array(question.batches, dtype=float)
    after = np.append(tried, tried[-1])[np.searchsorted(tried, most, side="right")]
    steps = np.floor(most[:, None] + (after - most)[:, None] * np.arange(1, _STEPS) / _STEPS)
    layouts, at = np.nonzero((steps > most[:, None]) & (steps < after[:, None]) & (most > 0)[:, None])
    between = steps[layouts, at]
    fresh = np.unique(np.column_stack([layouts, between]), axis=0, return_index=True)[1]
    layouts, between = layouts[fresh], between[fresh]
    layout, replicas, admission, used = running.take(layouts)
    speed = _speed(running, layout, between * layout.dp, admission, question)
    queued = np.asarray(speed.capacity_limited)
    tally.lawful(len(between))
    tally.fitting += len(between)
    tally.lost(QUEUED, int(queued.sum()))
    limit = sequence_limit(between, admission.most, question)
    columns = _columns(speed, layout, replicas, between * layout.dp * replicas, used, question, limit=limit)
    return {name: column[~queued] for name, column in columns.items()}


def _load_carried(
    choice: FormatChoice,
    running: StartedEngines,
    replicas: NDArray[np.int64],
    question: SearchQuestion,
    tally: PlanTally,
) -> PlanColumns:
    """Each layout under its part of the stated load, told to run no more at once."""
    tally.lawful(len(running))
    tally.fitting += len(running)
    columns, carried = _under_load(choice, running, replicas, question)
    if question.workload.rate is not None:
        tally.lost(f"cannot carry {question.workload.rate:g} requests a second", int((~carried).sum()))
    return {name: column[carried] for name, column in columns.items()}


def _under_load(
    choice: FormatChoice, running: StartedEngines, replicas: NDArray[np.int64], question: SearchQuestion
) -> tuple[PlanColumns, NDArray[np.bool_]]:
    """The stated load shared by so many ``replicas`` of each layout, and where they keep up with it."""
    workload = question.workload
    rate = None if workload.rate is None else workload.rate / replicas
    layout = running.layout
    each = _requests_at(running, rate, question) if rate is not None else float(workload.concurrency or 1) / replicas
    limit = sequence_limit(each / np.asarray(layout.dp), running.admission.most, question)
    admission, used = limited(choice, layout, running.admission, running.used, limit, question)
    running = replace(running, admission=admission, used=used)
    if rate is not None:
        each = _requests_at(running, rate, question, near=each)
    speed = _speed(running, layout, each, admission, question, rate=rate)
    columns = _columns(speed, layout, replicas, each * replicas, used, question, limit=limit)
    if rate is None:
        return columns, np.ones(len(replicas), dtype=bool)
    return columns, np.asarray(speed.output_tokens_per_s) / (workload.osl or 1) >= rate * (1 - 1e-9)


def _enough(choice: FormatChoice, running: StartedEngines, question: SearchQuestion) -> NDArray[np.int64]:
    """The fewest engines of each layout that keep to the targets under their part of the load: no more than those whose part is
    one that was tried and does, more than those whose part is the next one, which does not.

    A target that a layout keeps to under no load does not count for it: its engines are loaded as the other targets allow.
    """
    workload = question.workload
    rows, batch = _grid(len(running), question)
    layout, _, admission, _ = running.take(rows)
    speed = _speed(running, layout, batch * layout.dp, admission, question)
    good = ~np.asarray(speed.capacity_limited)
    able = np.ones(len(running), dtype=bool)
    for late in lateness(np.asarray(speed.tpot_s), _held_s(speed, question), workload, question.margin).values():
        reached = np.zeros(len(running), dtype=bool)
        np.logical_or.at(reached, rows[good], late[good] <= 1.0)
        good &= (late <= 1.0) | ~reached[rows]
        able &= reached
    if workload.rate is not None:
        one = np.asarray(speed.output_tokens_per_s) / (workload.osl or 1)
        load = workload.rate
    else:
        one, load = batch * layout.dp, float(workload.concurrency or 1)
    most = np.zeros(len(running))
    np.maximum.at(most, rows[good], one[good])
    each = (len(running), len(question.batches))
    one, tried = np.broadcast_to(one, len(rows)).reshape(each), good.reshape(each) * np.arange(1, each[1] + 1)
    enough = np.ceil(load / np.where(most > 0, most, one[:, 0]) - 1e-9).astype(np.int64)
    beyond = np.minimum(tried.max(axis=1, initial=0), each[1] - 1)
    too_few = np.ceil(load / one[np.arange(each[0]), beyond] - 1e-9).astype(np.int64) - 1
    too_few = np.where(able & (most > 0), np.minimum(too_few, enough - 1), enough - 1)
    while (open_ := np.nonzero(enough - too_few > 1)[0]).size:
        few, many = too_few[open_], enough[open_]
        parts = 1 + max(1, min(_MOST_CUTS, _ROWS_A_CALL // open_.size))
        tried = np.clip(few + (many - few) * np.arange(1, parts)[:, None] // parts, few + 1, many - 1)
        engines = running.only(np.tile(open_, parts - 1))
        keeps = _keeps(choice, engines, tried.ravel(), question).reshape(tried.shape)
        enough[open_] = np.where(keeps, tried, many).min(axis=0)
        too_few[open_] = np.where(keeps | (tried >= enough[open_]), few, tried).max(axis=0)
    return enough


def _keeps(
    choice: FormatChoice, running: StartedEngines, replicas: NDArray[np.int64], question: SearchQuestion
) -> NDArray[np.bool_]:
    """Whether so many ``replicas`` of each layout carry the stated load within every target."""
    columns, good = _under_load(choice, running, replicas, question)
    for _, missed in misses(columns["tpot_s"], columns["held_ttft_s"], question.workload, question.margin):
        good &= ~missed
    return good


def _grid(layouts: int, question: SearchQuestion) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """(layout, requests in flight in each attention replica) of every layout under every load tried."""
    rows = np.repeat(np.arange(layouts), len(question.batches))
    return rows, np.tile(np.array(question.batches, dtype=float), layouts)


def _load(running: StartedEngines, question: SearchQuestion) -> dict[str, Any]:
    workload = question.workload
    return {
        "isl": workload.isl or 0, "osl": workload.osl or 0, "kv_format": running.kv_format,
        "prefix_hit": workload.prefix_hit,
    }  # fmt: skip


def _speed(
    running: StartedEngines,
    layout: Layout,
    concurrency: NDArray[Any],
    admission: Admission,
    question: SearchQuestion,
    *,
    rate: NDArray[np.float64] | None = None,
) -> ServingSpeed:
    return serving_speed(
        running.work,
        running.machine,
        layout,
        concurrency=concurrency,
        admission=admission,
        rate=rate,
        **_load(running, question),
    )


def _held_s(speed: ServingSpeed, question: SearchQuestion) -> NDArray[np.float64]:
    """The time to the first token as it is held against a target: the wait for a slot is of its own uncertainty."""
    waited_s, (sooner_s, later_s) = np.asarray(speed.first_lines["slot"]), speed.slot_wait_s
    held: NDArray[np.float64] = question.margin.unsteady(
        np.asarray(speed.ttft_s), (sooner_s - waited_s, later_s - waited_s)
    )
    return held


def _requests_at(
    running: StartedEngines, rate: NDArray[np.float64], question: SearchQuestion, *, near: Any = None
) -> NDArray[np.float64]:
    found: NDArray[np.float64] = concurrency_for_rate(
        running.work,
        running.machine,
        running.layout,
        rate=rate,
        admission=running.admission,
        near=near,
        **_load(running, question),
    )
    return found


def _columns(
    speed: ServingSpeed,
    layout: Layout,
    replicas: NDArray[np.int64],
    requests: NDArray[np.float64],
    used: NDArray[np.float64],
    question: SearchQuestion,
    *,
    limit: NDArray[np.float64],
) -> PlanColumns:
    count = len(replicas)
    gpus = np.asarray(layout.gpus) * replicas
    degrees = {name: np.asarray(getattr(layout, name)) for name in DEGREES}
    return degrees | {
        **dict.fromkeys(PREFILL_DEGREES, np.ones(count, dtype=np.int64)),
        "prefill_replicas": np.zeros(count, dtype=np.int64),
        "replicas": replicas,
        "gpus": gpus,
        "requests": requests,
        "ttft_s": np.asarray(speed.ttft_s),
        "held_ttft_s": _held_s(speed, question),
        "tpot_s": np.asarray(speed.tpot_s),
        "per_gpu": np.asarray(speed.output_tokens_per_s) * replicas / question.owned(gpus),
        "per_user": np.asarray(speed.tokens_per_s_per_user),
        "limit": np.broadcast_to(limit, count),
        "used": used,
    }
