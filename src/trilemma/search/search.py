"""The search: which plans carry a load best on these cards, and why the others lose."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.layouts import check_context
from trilemma.estimate.sections import summary
from trilemma.estimate.serving import estimate
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import EngineRef, Layout, Plan, Pool
from trilemma.search.pareto import pareto_front
from trilemma.search.space import Fixed, Precision, kv_dtypes, layouts, precisions
from trilemma.search.table import Choice, PlanTable, Question, options_for, plan_table
from trilemma.timing.coefficients import spec_sheet
from trilemma.workloads import Serving


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One plan of a result: what runs, which checkpoint it needs, and its full estimate. ``workload`` has its own
    load, ``requests`` are in flight over all GPUs, ``kv_format`` is the cache format in force."""

    plan: Plan
    precision: Precision
    kv_format: str
    workload: Serving
    estimate: Estimate
    requests: int
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontPoint:
    """One plan of the Pareto front in a line: tokens a second for each GPU and for each reader."""

    layout: str
    precision: str
    kv_format: str
    requests: int
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Plans best first, then further members of the Pareto front of tokens/s/GPU against tokens/s/user.

    ``best`` of ``plans`` answer the question; the rest only widen the view. ``pareto`` are indices into ``plans`` of those
    on the front, ``front`` is the front in brief. ``meets_targets`` is False when no plan meets them: then the nearest
    misses are shown. ``rejected`` counts, by why, the plans that were searched and are not shown.
    """

    workload: Serving
    plans: tuple[Found, ...]
    best: int
    pareto: tuple[int, ...]
    front: tuple[FrontPoint, ...]
    searched: int
    legal: int
    fitting: int
    meets_targets: bool
    rejected: Mapping[str, int]
    assumed: tuple[str, ...]
    seconds: float


def search_serving(
    model: Model,
    cluster: Cluster,
    workload: Serving,
    *,
    top: int = 5,
    front: int = 0,
    fixed: Fixed | None = None,
    precision: Sequence[str] | None = None,
    kv_dtype: Sequence[str] | None = None,
    engine: EngineRef | None = None,
) -> SearchResult:
    """Search layouts × precisions × cache formats × loads, most tokens per second and GPU under the latency targets first
    (at a stated rate of arrival the quickest answers).

    Without load and without targets a target for the time per output token is assumed and listed. ``top`` plans and up to
    ``front`` more of the Pareto front become full estimates. Raises `InputError` where lengths are missing or the degrees
    given cannot be laid out.
    """
    began = time.perf_counter()
    workload, assumed = _with_target(workload)
    check_context(model, workload.longest_request)
    question = Question(
        cluster=cluster, workload=workload, fixed=fixed or Fixed(), engine=engine or EngineRef()
    )  # fmt: skip
    choices = [
        Choice(precision=one, kv_dtype=kv)
        for one in precisions(model, cluster.accelerator, precision)
        for kv in kv_dtypes(one.model, cluster.accelerator, kv_dtype)
    ]
    space = layouts(model, gpus=cluster.gpus, fixed=question.fixed)
    if not space.legal:
        why = "; ".join(space.rejected) or "no layout is legal"
        raise InputError(
            f"{model.name} cannot be laid out on {cluster.gpus} GPUs: {why}; change --gpu or the degrees given"
        )
    table = plan_table(choices, space.layout, question)
    each = question.loads_per_layout * table.distinct
    rejected = Counter({why: count * each for why, count in space.rejected.items()}) + table.rejected
    meets = _judged(table, workload, rejected)
    chosen = _best(table, meets, workload, top)
    on_front = _front(table, meets)
    front_rows = [int(row) for row in np.flatnonzero(on_front)]
    extra = _spread(table, [row for row in front_rows if row not in chosen], front)
    plans = tuple(_found(table, row, question) for row in (*chosen, *extra))
    worse = "fewer tokens per second and GPU" if workload.rate is None else "slower answers"
    rejected[f"{worse} than a plan shown"] += int(meets.sum() if meets.any() else 0) - sum(
        bool(meets[found.row]) for found in plans
    )
    return SearchResult(
        workload=workload,
        plans=plans,
        best=len(chosen),
        pareto=tuple(at for at, found in enumerate(plans) if on_front[found.row]),
        front=tuple(_point(table, row) for row in _spread(table, front_rows, 6)),
        searched=space.searched * each,
        legal=table.legal,
        fitting=table.legal - sum(count for why, count in table.rejected.items() if "more requests" not in why),
        meets_targets=bool(meets.any()),
        rejected={why: count for why, count in rejected.most_common() if count > 0},
        assumed=assumed,
        seconds=time.perf_counter() - began,
    )


def _with_target(workload: Serving) -> tuple[Serving, tuple[str, ...]]:
    if workload.isl is None or workload.osl is None:
        raise InputError(
            "a search needs the lengths of prompt and output; give --serve ISL/OSL, such as --serve 4096/1024"
        )
    stated = (workload.concurrency, workload.rate, workload.ttft_ms, workload.tpot_ms)
    if any(value is not None for value in stated):
        return workload, ()
    target = spec_sheet()["assumed_target"]
    words = (
        f"no load or latency asked for: --tpot {target['tpot_ms']} ms assumed ({target['source'].partition(':')[0]})"
    )
    return replace(workload, tpot_ms=float(target["tpot_ms"])), (words,)


def _judged(table: PlanTable, workload: Serving, rejected: Counter[str]) -> NDArray[np.bool_]:
    """Which plans meet the targets; the others are counted by the target they miss."""
    meets = np.ones(len(table), dtype=bool)
    for name, seconds, target in (
        ("tpot", table.tpot_s, workload.tpot_ms), ("ttft", table.ttft_s, workload.ttft_ms),
    ):  # fmt: skip
        if target is None:
            continue
        missed = meets & (seconds * 1e3 > target)
        if missed.any():
            rejected[f"misses --{name} {target:g} ms"] += int(missed.sum())
        meets &= ~missed
    return meets


def _best(table: PlanTable, meets: NDArray[np.bool_], workload: Serving, top: int) -> list[int]:
    """Rows to show: the best load of each layout, few of each choice, most tokens per GPU first (nearest miss if none)."""
    if not len(table):
        return []
    if meets.any():
        # at a stated rate every plan that keeps up makes as many tokens: the quickest answer is the best
        whole_s = table.ttft_s + (workload.osl or 1) * table.tpot_s
        score = np.where(meets, table.per_gpu if workload.rate is None else -whole_s, -np.inf)
    else:
        over = np.maximum(
            table.tpot_s * 1e3 / (workload.tpot_ms or np.inf), table.ttft_s * 1e3 / (workload.ttft_ms or np.inf)
        )
        score = -over
    order = [int(row) for row in np.argsort(-score, kind="stable") if score[row] > -np.inf]
    per_choice = -(-top // len({int(choice) for choice in table.choice[order]}))
    best: list[int] = []
    seen: set[tuple[int, ...]] = set()
    shown: Counter[int] = Counter()
    for row in order:
        choice = int(table.choice[row])
        key = (choice, *_degrees(table, row))
        if len(best) < top and key not in seen and shown[choice] < per_choice:
            seen.add(key)
            shown[choice] += 1
            best.append(row)
    return _with_published(table, order, best)


def _with_published(table: PlanTable, order: Sequence[int], best: list[int]) -> list[int]:
    """``best`` with the weights as published among them, for whoever wants the answers unchanged."""

    def unchanged(row: int) -> bool:
        choice: Choice = table.choices[table.choice[row]]
        return choice.precision.quality == "unchanged" and choice.kv_dtype == "auto"

    if any(unchanged(row) for row in best):
        return best
    first = next((row for row in order if unchanged(row)), None)
    return best if first is None or len(best) < 2 else [*best[:-1], first]


def _degrees(table: PlanTable, row: int) -> tuple[int, int, int, int]:
    tp, pp, dp, ep = (int(np.asarray(getattr(table.layout, name))[row]) for name in ("tp", "pp", "dp", "ep"))
    return tp, pp, dp, ep


def _point(table: PlanTable, row: int) -> FrontPoint:
    tp, pp, dp, ep = _degrees(table, row)
    choice = table.choices[table.choice[row]]
    return FrontPoint(
        layout=summary(Layout(tp=tp, pp=pp, dp=dp, ep=ep)),
        precision=choice.precision.name,
        kv_format=table.kv_formats[table.choice[row]],
        requests=int(table.requests[row]),
        tokens_per_s_per_gpu=float(table.per_gpu[row]),
        tokens_per_s_per_user=float(table.per_user[row]),
    )


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


def _found(table: PlanTable, row: int, question: Question) -> Found:
    """The full estimate of one row, made by the same functions that made the row."""
    choice = table.choices[table.choice[row]]
    tp, pp, dp, ep = _degrees(table, row)
    context = question.workload.longest_request or 0
    options = options_for(choice, context=context, fixed=question.fixed)
    plan = Plan(
        engine=question.engine, pools=(Pool(layout=Layout(tp=tp, pp=pp, dp=dp, ep=ep), options=options),)
    )  # fmt: skip
    requests = int(table.requests[row])
    load = question.workload if question.workload.rate is not None else replace(question.workload, concurrency=requests)
    answer = estimate(
        model=choice.precision.model,
        cluster=question.cluster,
        workload=load,
        plan=plan,
        served_as=choice.precision.served_as,
    )
    return Found(
        plan=plan,
        precision=choice.precision,
        kv_format=table.kv_formats[table.choice[row]],
        workload=load,
        estimate=answer,
        requests=requests,
        row=row,
    )
