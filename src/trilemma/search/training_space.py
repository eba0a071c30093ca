"""Every training plan to look at: a table of layouts and micro-batches, and the choices that cannot be arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.number_formats import training_lacks
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import Habits, every
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Offload, Recompute, Schedule, TrainingPlan
from trilemma.quantities import counted
from trilemma.search.training_habits import habits_of, ladder_of
from trilemma.search.training_layouts import (
    DEGREES,
    MOST_ROWS,
    LayoutRows,
    TrainingConstraints,
    experts_of,
    joined,
    layout_rows,
    thin,
)
from trilemma.workloads import TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Plans that share everything but numbers and recompute: ``ladder`` runs from the leanest mode to the fastest.

    ``rescue`` families (state moved to the host) are tried for rows alone that fit no other way.
    """

    template: TrainingPlan
    ladder: tuple[Recompute, ...]
    rescue: bool = False
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpace:
    """Rows of a cluster before any rule, and the families of plans over them; ``thinned`` rows are left out of a large table."""

    rows: LayoutRows
    families: tuple[Family, ...]
    thinned: LayoutRows


def training_space(
    model: Model, accelerator: Accelerator, workload: TrainingWorkload, *, gpus: int, settled: TrainingConstraints
) -> TrainingSpace:
    """All layouts of ``gpus`` (degrees that multiply to it, chunks up to the layers, micro-batches that divide), and families.

    Raises `InputError` where what is settled leaves nothing.
    """
    rows = joined(list(layout_rows(model, workload, gpus, settled)))
    if not len(rows):
        raise InputError(_nothing(settled, gpus, workload))
    kept = np.ones(len(rows), dtype=bool)
    if len(rows) > MOST_ROWS:
        thinned = thin(model, accelerator, workload, settled, rows)
        kept = thinned if thinned.any() else kept
    families = tuple(_families(model, accelerator, workload, settled))
    return TrainingSpace(rows=rows.take(kept), families=families, thinned=rows.take(~kept))


def _families(
    model: Model, accelerator: Accelerator, workload: TrainingWorkload, settled: TrainingConstraints
) -> Iterator[Family]:
    """Templates: recipe × ZeRO stage × schedule, each with its ladder of recompute; offload as a rescue."""
    habits = habits_of(settled.implementation, method=workload.method)
    ladder = ladder_of(habits, mixture=experts_of(model) > 1) if settled.recompute is None else (settled.recompute,)
    stages = habits.stages if settled.zero is None else (settled.zero,)
    schedules: tuple[Schedule, ...] = (settled.schedule,) if settled.schedule else ("1f1b", "interleaved")
    for name in settled.recipes:
        lacks = training_lacks(recipe(name).matmul, accelerator)
        if lacks is not None:
            raise InputError(f"--precision {name}: {lacks}")
    for name in settled.recipes or recipes_of(accelerator, habits.recipes, habits.narrow_recipes):
        for zero in stages:
            for schedule in schedules:
                template = _template(habits, settled, name, mtp=_trains_mtp(model, workload, settled))
                base = replace(template, zero=zero, schedule=schedule)
                label = f"{name}, ZeRO-{zero}, {schedule}"
                if settled.offload is not None:
                    yield Family(template=replace(base, offload=settled.offload), ladder=ladder, name=label)
                    continue
                yield Family(template=base, ladder=ladder, name=label)
                if workload.method == "full":
                    moved = replace(base, offload=Offload(optimizer=1.0))
                    yield Family(template=moved, ladder=ladder[:1], rescue=True, name=f"{label}, optimizer on the host")


def _template(habits: Habits, settled: TrainingConstraints, name: str, *, mtp: bool) -> TrainingPlan:
    return TrainingPlan(
        implementation=settled.implementation,
        version=settled.version,
        recipe=recipe(name),
        optimizer=optimizer(settled.optimizer or habits.optimizer),
        sp=settled.sp is not False,
        attention=habits.attention,
        compiled=habits.compiled,
        loss=settled.loss or (habits.loss if settled.loss_tile is None else "fused"),
        dispatcher=settled.dispatcher,
        overlap_expert=settled.overlap_expert,
        cuda_graphs=settled.cuda_graphs,
        step_graph=settled.step_graph,
        fused_experts=settled.fused_experts,
        shard_group=settled.shard_group,
        loss_tile=settled.loss_tile,
        mlp_tiles=settled.mlp_tiles or 1,
        overlap_tensor=habits.overlap,
        overlap_data=habits.overlap,
        mtp=mtp,
    )


def _trains_mtp(model: Model, workload: TrainingWorkload, settled: TrainingConstraints) -> bool:
    """Whether multi-token-prediction layers train: some frameworks' exported command has them, others drop them."""
    return bool(model.mtp_layers) and every()[settled.implementation].trains_mtp and not workload.trains_adapters


def usual_plan(
    model: Model, accelerator: Accelerator, workload: TrainingWorkload, settled: TrainingConstraints
) -> TrainingPlan:
    """The implementation's plainest plan, on one GPU, with what is settled beside layout: ``fit`` starts from it."""
    habits = habits_of(settled.implementation, method=workload.method)
    names = settled.recipes or recipes_of(accelerator, habits.recipes, ())
    if len(names) > 1 and settled.recipes:
        raise InputError(f"--precision {','.join(names)} names {len(names)} recipes; one plan has one")
    plan = _template(habits, settled, names[0], mtp=_trains_mtp(model, workload, settled))
    zero = habits.stages[0] if settled.zero is None else settled.zero
    return replace(plan, zero=zero, offload=settled.offload or Offload())


def recipes_of(accelerator: Accelerator, plain: tuple[str, ...], narrow: tuple[str, ...]) -> tuple[str, ...]:
    """``plain`` recipes, and of the narrow ones (FP8, MXFP8) the one that the card has matrix units for."""
    formats = set(accelerator.hardware_formats)
    if narrow and "mxfp8" in formats:
        return (*plain, narrow[1])
    return (*plain, narrow[0]) if narrow and "fp8" in formats else plain


def _nothing(settled: TrainingConstraints, gpus: int, workload: TrainingWorkload) -> str:
    given = [f"`{name}` {getattr(settled, name)}" for name in (*DEGREES, "micro_batch")]
    given = [text for text in given if not text.endswith("None")]
    shown = " x ".join(given) or "no degrees"
    product = 1
    for name in ("tp", "pp", "dp", "cp"):
        product *= getattr(settled, name) or 1
    if gpus % product:
        return (
            f"{shown}: their product {product} does not divide the {counted(gpus, 'GPU')} of `gpu`; use degrees that do"
        )
    return (
        f"{shown} leaves no layout of {counted(gpus, 'GPU')} whose replicas divide `global_batch` {workload.global_batch};"
        " use another global batch, or a larger `tp`, `pp` or `cp`"
    )
