"""What follows a training search: what more hardware would buy, how few GPUs would do, and how far the plan has come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from trilemma.columns import column
from trilemma.errors import InputError
from trilemma.estimate.training_price import priced, step_of
from trilemma.hardware.accelerator import Figure
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training_model import PreparedModels
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import every
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import recipe
from trilemma.plans.training import Offload, Recompute, TrainingPlan
from trilemma.search.training import TrainingSearch
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.search.training_rules import training_violations
from trilemma.search.training_space import training_space
from trilemma.search.training_table import TrainingTable, order_of, training_table
from trilemma.workloads import TrainingWorkload

#: How much more of a resource is tried.
MORE = 1.1
#: The best rows under changed hardware are among this many best ones of today: 10 % of one resource moves a step by less.
_CONTENDERS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """10 % more of ``resource`` makes the best step take ``step_s``; ``gain`` is the share of time saved."""

    resource: str
    step_s: float
    gain: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastGpus:
    """The fewest GPUs that hold the job, and the plan with which they do; ``offload`` where state has to leave the card."""

    gpus: int
    plan: TrainingPlan
    device_bytes: float
    offload: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WaterfallStep:
    """One change on the way from a naive plan to the best: seconds and bytes after it, and whether that fits."""

    change: str
    step_s: float
    device_bytes: float = field(metadata=column(whole=True))
    fits: bool


def sensitivity(model: Model, cluster: Cluster, workload: TrainingWorkload, search: TrainingSearch) -> tuple[Gain, ...]:
    """What 10 % more of each resource buys: the best plan is chosen anew among the contenders of today.

    More memory admits plans that missed the card: those within the new capacity are priced too.
    """
    if not search.plans:
        return ()
    best = search.plans[0].step_s
    table = search.table
    contenders = order_of(table)[:_CONTENDERS]
    gains = []
    for name, changed in _more(cluster):
        fastest = _fastest(model, changed, workload, table, contenders)
        gains.append(Gain(resource=name, step_s=fastest, gain=1 - fastest / best))
    larger = _with_more_memory(model, cluster, workload, search)
    gains.append(Gain(resource="memory", step_s=larger, gain=1 - larger / best))
    return tuple(sorted(gains, key=lambda one: -one.gain))


def _fastest(
    model: Model, cluster: Cluster, workload: TrainingWorkload, table: TrainingTable, rows: np.ndarray
) -> float:
    fastest = np.inf
    for choice in np.unique(table.choice[rows]):
        here = rows[table.choice[rows] == choice]
        plan = table.rows.take(here).plan(table.templates[int(choice)])
        step = step_of(model, cluster, plan, workload, prepared=table.prepared.of(plan))
        fastest = min(fastest, float(np.min(step.step_s)))
    return fastest


def _more(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    card = cluster.accelerator
    peaks = {fmt: _scaled(figure) for fmt, figure in card.peak_flops.items()}
    yield "compute", replace(cluster, accelerator=replace(card, peak_flops=peaks))
    faster = replace(card, bandwidth_bytes_per_s=_scaled(card.bandwidth_bytes_per_s))
    yield "memory bandwidth", replace(cluster, accelerator=faster)
    if card.link is not None and cluster.domain > 1:
        link = replace(card.link, bytes_per_s=_scaled(card.link.bytes_per_s))
        yield f"{card.link.name} in the node", replace(cluster, accelerator=replace(card, link=link))
    if cluster.nodes > 1:
        edge_bytes_per_s = cluster.network.value * cluster.oversubscription * cluster.gpus_per_node
        yield "network between nodes", replace(cluster, network_bytes_per_s=edge_bytes_per_s * MORE)


def _scaled(figure: Figure) -> Figure:
    return Figure(value=figure.value * MORE, source=f"{MORE:g} x {figure.value:g} (what if)")


def _with_more_memory(model: Model, cluster: Cluster, workload: TrainingWorkload, search: TrainingSearch) -> float:
    """The best step where the card had 10 % more memory: every mode of recompute for the layouts of the contenders."""
    table, fastest = search.table, search.plans[0].step_s
    rows = order_of(table)[:_CONTENDERS]
    modes = list(dict.fromkeys(one.recompute for one in table.templates))
    for choice in np.unique(table.choice[rows]):
        template = table.templates[int(choice)]
        here = table.rows.take(rows[table.choice[rows] == choice])
        for mode in modes:
            if mode == template.recompute:
                continue
            plan = here.plan(replace(template, recompute=mode))
            memory, step = priced(model, cluster, plan, workload, prepared=table.prepared.of(plan))
            fits = np.asarray(memory.device_bytes) <= search.capacity_bytes * MORE
            if fits.any():
                fastest = min(fastest, float(np.asarray(step.step_s)[fits].min()))
    return fastest


def least_gpus(
    model: Model, cluster: Cluster, workload: TrainingWorkload, settled: TrainingConstraints
) -> LeastGpus | None:
    """The fewest GPUs, doubling from one, on which the job fits at micro-batch 1; None where the cluster does not hold it.

    Any recipe, ZeRO stage and recompute may be used; state goes to the host only where nothing else fits.
    """
    prepared = PreparedModels(model=model, workload=workload)
    open_again = replace(settled, tp=None, pp=None, vpp=1, dp=None, ep=None, cp=None, micro_batch=1, schedule="1f1b")
    for offload in (None, Offload(optimizer=1.0)):
        if offload is not None and (settled.offload is not None or workload.method != "full"):
            continue
        gpus = 1
        while gpus < 2 * cluster.gpus:
            asked = min(gpus, cluster.gpus)
            asked_of = replace(open_again, offload=offload or settled.offload)
            found = _holds(prepared, cluster, asked_of, asked)
            if found is not None:
                return LeastGpus(gpus=asked, plan=found[0], device_bytes=found[1], offload=offload is not None)
            gpus *= 2
    return None


def _holds(
    prepared: PreparedModels, cluster: Cluster, settled: TrainingConstraints, gpus: int
) -> tuple[TrainingPlan, float] | None:
    model, workload = prepared.model, prepared.workload
    smaller = replace(cluster, gpus=gpus, gpus_per_node=min(cluster.gpus_per_node, gpus))
    lean = replace(settled, recompute=settled.recompute or Recompute(mode="full"))
    try:
        space = training_space(model, cluster.accelerator, workload, gpus=gpus, settled=lean)
    except InputError:
        return None
    plain = {family.template.recipe for family in space.families[:1]}
    families = [family for family in space.families if not family.rescue and family.template.recipe in plain]
    space = replace(space, families=tuple(families))
    capacity = float(cluster.accelerator.runtime_total().value)
    table = training_table(model, smaller, workload, space, capacity_bytes=capacity, prepared=prepared)
    if not len(table):
        return None
    at = int(order_of(table)[0])
    return table.plan(at), float(table.device_bytes[at])


def waterfall(
    model: Model, cluster: Cluster, workload: TrainingWorkload, search: TrainingSearch
) -> tuple[WaterfallStep, ...]:
    """From a naive plan (tensor parallel in the node, replicas, full recompute, BF16, micro-batch 1) to the best, one setting
    at a time: how the model is cut, sharding, recompute, chunks, micro-batch, precision, what is left."""
    if not search.plans:
        return ()
    best = search.plans[0].plan
    plan = _naive(model, cluster, workload, best)
    if plan is None:
        return ()
    steps = [_priced(cluster, plan, f"naive: {_cut(plan.layout)}, full recompute", search)]
    for change, nearer in _changes(plan, best):
        if nearer == plan or _illegal(model, nearer, workload, cluster.gpus):
            continue
        plan = nearer
        steps.append(_priced(cluster, plan, change, search))
    return tuple(steps)


def _changes(plan: TrainingPlan, best: TrainingPlan) -> Iterator[tuple[str, TrainingPlan]]:
    """Plans nearer and nearer to ``best``, each with the words of what changed."""
    shape = replace(best.layout, vpp=1)
    plan = replace(plan, layout=shape, sp=best.sp)
    yield f"cut as {_cut(shape)}", plan
    plan = replace(plan, zero=best.zero, shard_group=best.shard_group)
    yield f"ZeRO-{best.zero} sharding", plan
    plan = replace(plan, recompute=best.recompute)
    yield f"recompute {best.recompute.mode}", plan
    schedule = "1f1b" if best.schedule == "interleaved" and best.layout.vpp == 1 else best.schedule
    plan = replace(plan, layout=best.layout, schedule=schedule)
    yield f"{best.schedule}, {best.layout.vpp} chunks a stage", plan
    plan = replace(plan, micro_batch=best.micro_batch)
    yield f"micro-batch {best.micro_batch}", plan
    plan = replace(plan, recipe=best.recipe)
    yield f"recipe {best.recipe.name}", plan
    yield "what is left (optimizer, offload, overlap)", best


def _naive(model: Model, cluster: Cluster, workload: TrainingWorkload, best: TrainingPlan) -> TrainingPlan | None:
    """Tensor parallel over a node, or as far as the heads allow, the rest replicas, nothing else."""
    tp = min(cluster.gpus_per_node, cluster.gpus)
    plain = recipe(every()[best.implementation].plain_recipe or best.recipe.name)
    while tp >= 1:
        if cluster.gpus % tp == 0:
            layout = Layout(tp=tp, dp=cluster.gpus // tp)
            plan = replace(
                best, layout=layout, micro_batch=1, zero=0 if best.zero < 3 else 3, recompute=Recompute(mode="full"),
                schedule="1f1b", recipe=plain, offload=Offload(), expert_tp=None, shard_group=None,
            )  # fmt: skip
            if not _illegal(model, plan, workload, cluster.gpus):
                return plan
        tp //= 2
    return None


def _illegal(model: Model, plan: TrainingPlan, workload: TrainingWorkload, gpus: int) -> bool:
    return any(np.any(broken) for broken in training_violations(model, plan, workload, gpus=gpus).values())


def _priced(cluster: Cluster, plan: TrainingPlan, change: str, search: TrainingSearch) -> WaterfallStep:
    known = search.table.prepared
    memory, time = priced(known.model, cluster, plan, known.workload, prepared=known.of(plan))
    need, step = float(memory.device_bytes), float(time.step_s)
    return WaterfallStep(change=change, step_s=step, device_bytes=need, fits=need <= search.capacity_bytes)


def _cut(layout: Layout) -> str:
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep", "cp")}
    return " ".join(f"{name.upper()}{degree}" for name, degree in degrees.items() if degree > 1) or "one GPU"
