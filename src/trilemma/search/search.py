"""The search: which plans carry a load best on these cards, and why the others lose."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trilemma.engines import canonical, traits_of
from trilemma.engines.traits import those
from trilemma.errors import InputError
from trilemma.estimate.layouts import check_context
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import EngineRef
from trilemma.quantities import counted
from trilemma.search.assumed_targets import targets_tried
from trilemma.search.blocked import blocked
from trilemma.search.found import found_of, point_of, pools_of
from trilemma.search.pareto import pareto_front
from trilemma.search.precisions import kv_dtypes, precisions
from trilemma.search.question import FormatChoice, LayoutSpace, PoolsAsked, SearchQuestion
from trilemma.search.result import SearchResult, worse_than_shown
from trilemma.search.space import NODES, Constraints, engine_layouts, layouts, slots_tried
from trilemma.search.table import PlanTable, plan_table
from trilemma.search.targets import EVEN_ODDS, misses, overshoot
from trilemma.timing.serving_terms import ServingTerms
from trilemma.workloads import Serving


def search_serving(
    model: Model,
    cluster: Cluster,
    workload: Serving,
    *,
    top: int = 5,
    front: int = 0,
    fixed: Constraints | None = None,
    precision: Sequence[str] | None = None,
    kv_dtype: Sequence[str] | None = None,
    engine: EngineRef | None = None,
    pools: PoolsAsked = "aggregated",
    free: bool = False,
    confidence: float | None = None,
    terms: ServingTerms | None = None,
    assume: bool = True,
) -> SearchResult:
    """Search layouts × precisions × cache formats × loads, with and without prefill and decode apart: most tokens per second
    and GPU under the latency targets first (at a stated rate of arrival the quickest answers).

    Without load a target that is not stated is assumed and listed, unless ``assume`` says that none is. ``top`` plans and up to
    ``front`` more of the Pareto front become full estimates. ``free`` searches the number of GPUs, ``cluster`` being one
    node: with a load the plan of the fewest GPUs comes first. ``confidence`` is the chance with which each target has to hold
    (None: at least as likely as not); ``terms`` take the place of those that
    ship. Raises `InputError` where lengths are missing or the degrees
    given cannot be laid out, and for pools that the engine does not have.
    """
    began = time.perf_counter()
    named = engine or EngineRef()
    for asked, words in targets_tried(workload, assume=assume):
        check_context(model, asked.longest_request)
        question = SearchQuestion(
            cluster=cluster, workload=asked, fixed=fixed or Constraints(), engine=named, free=free,
            confidence=_checked(confidence, asked), terms=terms,
            pools=pools_possible(pools, named, gpus=cluster.gpus, workload=asked),
        )  # fmt: skip
        table = table_of(model, choices_of(model, question, precision=precision, kv_dtype=kv_dtype), question)
        rejected = Counter(table.tally.rejected)
        meets = _judged(table, asked, rejected)
        assumed = words
        if meets.any() or not len(table):
            break
    tally, workload = table.tally, question.workload
    chosen = _best(table, meets, question, top)
    on_front = _front(table, meets)
    front_rows = [int(row) for row in np.flatnonzero(on_front)]
    extra = _spread(table, [row for row in front_rows if row not in chosen], front)
    plans = tuple(found_of(table, row, question) for row in (*chosen, *extra))
    left = tally.worse + int(meets.sum() if meets.any() else 0) - sum(bool(meets[found.row]) for found in plans)
    rejected[worse_than_shown(workload, free=free)] += left
    per_gpu = np.array([table.per_gpu[row] for row in chosen])
    return SearchResult(
        workload=workload,
        plans=plans,
        best=len(chosen),
        pareto=tuple(at for at, found in enumerate(plans) if on_front[found.row]),
        front=tuple(point_of(table, row, question) for row in _spread(table, front_rows, 6)),
        searched=tally.searched,
        legal=tally.legal,
        fitting=tally.fitting,
        meets_targets=bool(meets.any()),
        rejected={why: count for why, count in rejected.most_common() if count > 0},
        assumed=assumed,
        seconds=time.perf_counter() - began,
        free=free,
        confidence=confidence,
        blocked=() if meets.any() else blocked(table, workload),
        cheapest=int(np.argmax(per_gpu > per_gpu.max() * (1 - 1e-9))) if free and meets.any() else None,
    )


def choices_of(
    model: Model, question: SearchQuestion, *, precision: Sequence[str] | None, kv_dtype: Sequence[str] | None
) -> list[FormatChoice]:
    """Every precision with every cache format, in every number of slots where the engine has such."""
    accelerator, name = question.cluster.accelerator, canonical(question.engine.name)
    slots = slots_tried(
        name, gpus=question.cluster.gpus, concurrency=question.workload.concurrency, fixed=question.fixed
    )
    tried = precisions(model, accelerator, precision, engine=name)
    for one in tried:
        stored = one.model.quantization
        if stored is not None and stored.method in traits_of(name).never_loaded:
            raise InputError(traits_of(name).loads_none(stored.method))
    return [
        FormatChoice(precision=one, kv_dtype=kv, slots=each)
        for one in tried
        for kv in kv_dtypes(one.model, accelerator, kv_dtype, engine=name)
        for each in slots
    ]


def pools_possible(pools: PoolsAsked, engine: EngineRef, *, gpus: int, workload: Serving) -> PoolsAsked:
    """``pools``, or what is left of them where the engine, the number of GPUs or the lengths allow one kind alone.

    Raises `InputError` where only disaggregated plans are asked for and there can be none.
    """
    why = None
    if not traits_of(engine.name).disaggregates:
        why = f"{engine.name} has no prefill and decode pools; use {', '.join(those('disaggregates'))}"
    elif gpus < 2:
        why = "prefill and decode pools take at least 2 GPUs; give more with `gpu`"
    elif workload.osl == 1:
        why = "an output of 1 token leaves a decode pool nothing to do; give a longer one"
    if why is None or pools == "aggregated":
        return pools
    if pools == "disaggregated":
        raise InputError(f"`pools` disaggregated: {why}, or leave `pools` out")
    return "aggregated"


def table_of(model: Model, choices: Sequence[FormatChoice], question: SearchQuestion) -> PlanTable:
    """The plans of ``question``; where the number of GPUs is free and a node does not hold the model, engines span more."""
    if not question.free:
        return plan_table(choices, _space(model, question), question)
    table = None
    for nodes in NODES:
        most = nodes * question.cluster.gpus_per_node
        wider = replace(question, cluster=replace(question.cluster, gpus=most))
        table = plan_table(choices, _space(model, wider), wider)
        if table.tally.fitting:
            break
    assert table is not None
    return table


def _space(model: Model, question: SearchQuestion) -> LayoutSpace:
    """The layouts to try. Engines of pools, and of any number of GPUs, fill a node evenly or several whole ones, unless degrees
    are settled."""
    cluster, fixed = question.cluster, question.fixed
    gpus, node = cluster.gpus, cluster.gpus_per_node
    settled = any(degree is not None for degree in (fixed.tp, fixed.pp, fixed.dp))
    inside = [size for size in range(1, node) if settled or node % size == 0]
    sizes = (*inside, *(node * nodes for nodes in NODES))
    part_sizes = [size for size in sizes if size < gpus or (question.free and size <= gpus)]
    parts = None
    if question.free or question.pools != "aggregated":
        try:
            parts = engine_layouts(model, sizes=part_sizes, fixed=fixed, engine=canonical(question.engine.name))
        except InputError as error:
            if question.free:
                raise
            if question.pools == "disaggregated":
                raise InputError(
                    f"`pools` disaggregated: two engines of the degrees given do not go onto {counted(gpus, 'GPU')} ({error});"
                    " give more GPUs or fewer degrees"
                ) from None
    whole = None
    if not question.free and question.pools != "disaggregated":
        whole = layouts(model, gpus=gpus, fixed=fixed, gpus_per_node=node, engine=canonical(question.engine.name))
    space = LayoutSpace(whole=whole, parts=parts)
    legal = [one.legal for one in (whole, parts) if one is not None]
    if not any(legal):
        why = "; ".join(dict.fromkeys(rule for one in (whole, parts) if one is not None for rule in one.rejected))
        raise InputError(
            f"{model.name} cannot be laid out on {counted(gpus, 'GPU')}: {why or 'no layout is legal'};"
            " change `gpu` or the degrees given"
        )
    return space


def _checked(confidence: float | None, workload: Serving) -> float | None:
    if confidence is None:
        return None if workload.ttft_ms is None and workload.tpot_ms is None else EVEN_ODDS
    if not 0 < confidence < 1:
        raise InputError(f"`confidence` {confidence:g} is no chance; give one above 0 and below 1, such as 0.8")
    if workload.ttft_ms is None and workload.tpot_ms is None:
        raise InputError(f"`confidence` {confidence:g} has no target to hold; give `ttft` or `tpot`")
    return confidence


def _judged(table: PlanTable, workload: Serving, rejected: Counter[str]) -> NDArray[np.bool_]:
    """Which plans meet the targets; the others are counted by the target they miss."""
    meets = np.ones(len(table), dtype=bool)
    for why, missed in misses(table.tpot_s, table.held_ttft_s, workload, table.margin):
        if missed.any():
            rejected[why] += int(missed.sum())
        meets &= ~missed
    return meets


def _best(table: PlanTable, meets: NDArray[np.bool_], question: SearchQuestion, top: int) -> list[int]:
    """Rows to show: the best load of each layout, few of each precision, most tokens per GPU first (nearest miss if none).

    Where a load is stated and the number of GPUs is free, the fewest GPUs come first.
    """
    if not len(table):
        return []
    workload = question.workload
    if meets.any():
        # at a stated rate every plan that keeps up makes as many tokens: the quickest answer is the best
        whole_s = table.ttft_s + (workload.osl or 1) * table.tpot_s
        score = table.per_gpu if workload.rate is None else -whole_s
        order = np.flatnonzero(meets)
    else:
        beyond, order = overshoot(table.tpot_s, table.held_ttft_s, workload, table.margin), np.arange(len(table))
        score = -beyond
        if question.free and question.stated:
            # twice the GPUs are no better advice unless they are twice as near
            score = -beyond * table.gpus
    fewest = table.gpus if question.free and question.stated and meets.any() else np.zeros(len(table))
    ranked = [int(row) for row in order[np.lexsort((-score[order], fewest[order]))]]
    kinds = [(choice.precision.name, choice.kv_dtype) for choice in table.choices]
    per_kind = -(-top // len({kinds[choice] for choice in np.unique(table.choice[ranked])}))
    best: list[int] = []
    seen: set[object] = set()
    shown: Counter[tuple[str, str]] = Counter()
    for row in ranked:
        if len(best) == top:
            break
        kind = kinds[int(table.choice[row])]
        if shown[kind] < per_kind and (key := (kind, *pools_of(table, row))) not in seen:
            seen.add(key)
            shown[kind] += 1
            best.append(row)
    apart = table.prefill_replicas > 0
    published = np.array([_as_published(choice) for choice in table.choices])[table.choice]
    return _with_kinds(ranked, best, (apart, ~apart, published))


def _with_kinds(ranked: Sequence[int], best: list[int], kinds: Sequence[NDArray[np.bool_]]) -> list[int]:
    """``best`` with the first plan of each kind among them, in the place of the last that is not alone of another kind."""
    for kind in kinds:
        first = next((row for row in ranked if kind[row]), None)
        if first is None or kind[best].any():
            continue
        alone = {row for other in kinds for row in best if other[row] and int(other[best].sum()) == 1}
        spare = [row for row in best[1:] if row not in alone]
        if spare:
            best = sorted([*(row for row in best if row != spare[-1]), first], key=ranked.index)
    return best


def _as_published(choice: FormatChoice) -> bool:
    """The weights and the cache as published, for whoever wants the answers unchanged."""
    return choice.precision.quality == "unchanged" and choice.kv_dtype == "auto"


def _front(table: PlanTable, meets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Plans that no other beats in tokens/s/GPU and tokens/s/user together, among those that meet the targets."""
    among = meets if meets.any() else np.ones(len(table), dtype=bool)
    front = np.zeros(len(table), dtype=bool)
    front[among] = pareto_front(np.column_stack([table.per_gpu[among], table.per_user[among]]))
    return front


def _spread(table: PlanTable, rows: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of ``rows``, evenly over the front from the most tokens per GPU to the quickest."""
    ordered = sorted(rows, key=lambda row: -table.per_gpu[row])
    if len(ordered) <= most:
        return ordered
    return [ordered[round(at)] for at in np.linspace(0, len(ordered) - 1, most)] if most > 0 else []
