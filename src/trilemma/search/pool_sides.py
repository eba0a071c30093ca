"""Both sides of plans with pools apart, each priced by itself and thinned to what can win, and joins of the two.

A prefill engine is worth joining if no other that fits as often into the same GPUs is as quick and takes as many prompts; a
decode engine at some batch likewise by the time per token and the requests a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.models.architecture import Model
from trilemma.search.aggregated import QUEUED
from trilemma.search.pareto import front_of_two, pareto_front
from trilemma.search.pool_rules import equal_ranks, pairs_refused
from trilemma.search.question import PlanTally, SearchQuestion, StartedEngines
from trilemma.search.space import take
from trilemma.search.targets import missed_words
from trilemma.timing.disaggregation import (
    DecodeWorker,
    Flow,
    PrefillWorker,
    decode_worker,
    flow,
    prefill_worker,
    prompt_cache_bytes,
)

OTHERS_BETTER = "prefill or decode engines that others beat"


@dataclass(frozen=True, kw_only=True, slots=True)
class Joins:
    """A table of plans: ``engines`` prefill engines ``prefill`` with ``workers`` decode engines ``decode``, which are rows of
    `Sides` or (`of_layouts`) engines that start. ``requests`` are in flight where a row has a load of its own."""

    prefill: NDArray[Any]
    decode: NDArray[Any]
    engines: NDArray[Any]
    workers: NDArray[Any]
    requests: NDArray[np.float64] | None = None

    @classmethod
    def none(cls) -> Joins:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(prefill=nothing, decode=nothing, engines=nothing, workers=nothing)

    def __len__(self) -> int:
        return len(self.prefill)

    def take(self, chosen: NDArray[Any]) -> Joins:
        return replace(
            self, **{name: getattr(self, name)[chosen] for name in ("prefill", "decode", "engines", "workers")}
        )

    def of_layouts(self, sides: Sides) -> Joins:
        return replace(self, prefill=sides.prefill_at[self.prefill], decode=sides.decode_at[self.decode])


class Sides:
    """Both sides of one choice after thinning: ``prefill`` with its engines ``prefill_at``, ``decode`` with engines
    ``decode_at`` at each batch, indices into the engines that start. ``allowed`` says which of them the engine joins."""

    def __init__(self, running: StartedEngines, model: Model, question: SearchQuestion, tally: PlanTally) -> None:
        workload = question.workload
        isl, osl = workload.isl or 0, workload.osl or 0
        work, machine, kv_format = running.work, running.machine, running.kv_format
        gpus = np.asarray(running.layout.gpus)
        prefill = prefill_worker(
            work, machine, running.layout, isl=isl, kv_format=kv_format, prefix_hit=workload.prefix_hit
        )
        # engines that only join their like are thinned among their like
        alike = np.asarray(running.layout.tp) if equal_ranks(question.engine, model) else np.zeros(len(running))
        at = _prefill_front(prefill, gpus, alike)
        rows = np.repeat(np.arange(len(running)), len(question.batches))
        batch = np.tile(np.array(question.batches, dtype=float), len(running))
        layout = take(running.layout, rows)
        decode = decode_worker(
            work, machine, layout, batch=batch, isl=isl, osl=osl, kv_format=kv_format,
            received_bytes=prompt_cache_bytes(work, layout, tokens=isl, kv_format=kv_format),
        )  # fmt: skip
        fits = batch <= running.admission.holds[rows]
        slow = fits & (np.asarray(decode.token_s) * 1e3 * question.margin.tpot > (workload.tpot_ms or np.inf))
        if np.all(slow | ~fits):
            slow = fits & (batch > 1)  # the nearest misses are those of a single request
        kept = _decode_front(decode, gpus[rows], fits & ~slow, alike[rows])
        if question.stated:
            thinned = len(running) - len(np.unique(rows[kept]))
            kept = np.flatnonzero(fits & ~slow & np.isin(rows, rows[kept]))  # every batch of what may be joined
        else:
            thinned = int((fits & ~slow).sum()) - len(kept)
            tally.lost(QUEUED, int((~fits).sum()))
            tally.lost(missed_words("tpot", workload.tpot_ms or 0, question.confidence), int(slow.sum()))
        dropped = len(running) - len(at) + (thinned if question.stated else len(rows) - len(kept))
        tally.lawful(dropped)
        tally.fitting += dropped
        tally.lost(OTHERS_BETTER, len(running) - len(at) + thinned)
        self.running = running
        self.prefill, self.prefill_at = prefill.take(at), at
        self.decode, self.decode_at = decode.take(kept), rows[kept]
        self.prefill_gpus, self.decode_gpus = gpus[at], gpus[rows[kept]]
        self.allowed = self._allowed(model, question, tally)

    def _allowed(self, model: Model, question: SearchQuestion, tally: PlanTally) -> NDArray[np.bool_]:
        """Which decode engines (columns) take the cache of which prefill engines (rows); pairs of layouts refused are counted."""
        prefill = take(self.running.layout, self.prefill_at[:, None])
        decode = take(self.running.layout, self.decode_at[None, :])
        allowed = np.ones((len(self.prefill_at), len(self.decode_at)), dtype=bool)
        first = np.unique(self.decode_at, return_index=True)[1]
        for why, refused in pairs_refused(question.engine, model, prefill, decode).items():
            newly = allowed & refused
            count = int(newly[:, first].sum())
            tally.lawful(count)
            tally.lost(why, count)
            allowed &= ~newly
        return allowed

    def joined(self, joins: Joins, *, offered: NDArray[np.float64] | None = None, arriving: bool = False) -> Flow:
        """What runs through ``joins`` while every decode engine runs its batch, or ``offered`` of them do; ``arriving``: requests
        come at a rate, whoever is in flight."""
        return flow(
            self.prefill.take(joins.prefill),
            self.decode.take(joins.decode),
            prefill_workers=joins.engines,
            decode_workers=joins.workers if offered is None else offered,
            machine=self.running.machine,
            gpus=self.gpus(joins),
            slots=self.running.admission.holds[self.decode_at[joins.decode]],
            arriving=arriving,
        )

    def gpus(self, joins: Joins) -> NDArray[Any]:
        prefill, decode = self.prefill_gpus[joins.prefill], self.decode_gpus[joins.decode]
        return np.asarray(prefill * joins.engines + decode * joins.workers)

    def pair(self, joins: Joins) -> NDArray[Any]:
        """One number for each pair of layouts."""
        return np.asarray(self.prefill_at[joins.prefill] * len(self.running) + self.decode_at[joins.decode])


def _prefill_front(worker: PrefillWorker, gpus: NDArray[Any], alike: NDArray[Any]) -> NDArray[np.int64]:
    """Engines that no other beats in prompts a second for each GPU, time of one prompt and ranks that send, among those whose
    number of GPUs divides theirs, each value of ``alike`` for itself."""
    rate = np.asarray(worker.servers) / worker.each_s / gpus
    points = np.column_stack([rate, -np.asarray(worker.alone_s), np.asarray(worker.ranks)])
    kept = [
        rows[_own_front(points[rows], gpus[rows], size, pareto_front)]
        for rows in _groups(alike)
        for size in np.unique(gpus[rows])
    ]
    return np.sort(np.concatenate(kept))


def _decode_front(
    worker: DecodeWorker, gpus: NDArray[Any], among: NDArray[np.bool_], alike: NDArray[Any]
) -> NDArray[np.int64]:
    """Likewise by requests a second for each GPU and time per token."""
    rows = np.flatnonzero(among)
    points = np.column_stack([np.asarray(worker.rate)[rows] / gpus[rows], -np.asarray(worker.token_s)[rows]])
    kept = [
        group[_own_front(points[group], gpus[rows][group], size, front_of_two)]
        for group in _groups(alike[rows])
        for size in np.unique(gpus[rows][group])
    ]
    return rows[np.sort(np.concatenate(kept))] if kept else rows


def _groups(alike: NDArray[Any]) -> list[NDArray[np.int64]]:
    return [np.flatnonzero(alike == value) for value in np.unique(alike)]


def _own_front(points: NDArray[np.float64], gpus: NDArray[Any], size: int, front: Any) -> NDArray[np.int64]:
    beside = np.flatnonzero(size % gpus == 0)
    good = beside[front(points[beside])]
    return np.asarray(good[gpus[good] == size])


def best_of_each(group: NDArray[Any], score: NDArray[np.float64], *, most: int) -> NDArray[np.int64]:
    """The row of the best score in each group, the best ``most`` of them."""
    order = np.lexsort((-score, group))
    first = order[np.unique(group[order], return_index=True)[1]]
    return np.asarray(first[np.argsort(-score[first], kind="stable")][:most])
