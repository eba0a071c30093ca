"""Every training plan to look at: a table of layouts and micro-batches, and the choices that cannot be arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.number_formats import training_lacks
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans.frameworks import Habits, every
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Dispatcher, Loss, Offload, Recompute, Schedule, TrainingPlan
from trilemma.quantities import counted
from trilemma.search.training_habits import habits_of, ladder_of
from trilemma.search.training_rules import training_violations
from trilemma.search.training_thinning import telling_chunks, telling_sizes
from trilemma.versions import DEFAULT_FRAMEWORK
from trilemma.workloads import TrainingWorkload

DEGREES = ("tp", "pp", "vpp", "dp", "ep", "cp")
#: Larger micro-batches than this fill no kernel better.
_MOST_MICRO_BATCH = 64
#: Larger tables are thinned, so that a search over any cluster answers in seconds.
_MOST_ROWS = 60_000
#: What thinning leaves: tensor parallelism within two machines, beyond which each layer's sums cross the network and any other
#: cut costs less; tokens of a rank that give context parallelism's two pieces (Llama 3, 2024, section 3.3.2) the 128 rows of a
#: tile; of micro-batches and chunks those that tell (`training_thinning`).
_MOST_TENSOR_NODES, _LEAST_TOKENS = 2, 256
THINNED = (
    "left unpriced in a table of this size: next to a plan that was priced, or cut finer than any hardware favours"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConstraints:
    """What the user settles before the search; None and empty leave it open."""

    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    dp: int | None = None
    ep: int | None = None
    cp: int | None = None
    micro_batch: int | None = None
    zero: int | None = None
    sp: bool | None = None
    recompute: Recompute | None = None
    schedule: Schedule | None = None
    recipes: tuple[str, ...] = ()
    optimizer: str | None = None
    offload: Offload | None = None
    dispatcher: Dispatcher | None = None
    cuda_graphs: bool = False
    shard_group: int | None = None
    loss: Loss | None = None
    mlp_tiles: int | None = None
    implementation: str = DEFAULT_FRAMEWORK
    version: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutRows:
    """Numbers of plans, one array entry each: the degrees and the micro-batch."""

    columns: dict[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> LayoutRows:
        return LayoutRows(columns={name: column[chosen] for name, column in self.columns.items()})

    def plan(self, template: TrainingPlan) -> TrainingPlan:
        """``template`` with these numbers: a table of plans."""
        layout = Layout(**{name: self.columns[name] for name in DEGREES})
        return replace(template, layout=layout, micro_batch=self.columns["micro_batch"])

    def one(self, template: TrainingPlan, at: int) -> TrainingPlan:
        """Plan number ``at`` alone."""
        layout = Layout(**{name: int(self.columns[name][at]) for name in DEGREES})
        return replace(template, layout=layout, micro_batch=int(self.columns["micro_batch"][at]))


def joined(parts: Sequence[LayoutRows]) -> LayoutRows:
    names = (*DEGREES, "micro_batch")
    if not parts:
        return LayoutRows(columns={name: np.zeros(0, dtype=np.int64) for name in names})
    return LayoutRows(columns={name: np.concatenate([part.columns[name] for part in parts]) for name in names})


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
    rows = joined(list(_layouts(model, workload, gpus, settled)))
    if not len(rows):
        raise InputError(_nothing(settled, gpus, workload))
    kept = np.ones(len(rows), dtype=bool)
    if len(rows) > _MOST_ROWS:
        thin = _thin(model, accelerator, workload, settled, rows)
        kept = thin if thin.any() else kept
    families = tuple(_families(model, accelerator, workload, settled))
    return TrainingSpace(rows=rows.take(kept), families=families, thinned=rows.take(~kept))


def legal(
    model: Model,
    workload: TrainingWorkload,
    template: TrainingPlan,
    rows: LayoutRows,
    rejected: Counter[str],
    *,
    times: int = 1,
) -> LayoutRows:
    """Rows that obey the rules under ``template``; the others are counted by rule, ``times`` each."""
    good = np.ones(len(rows), dtype=bool)
    for rule, broken in training_violations(model, rows.plan(template), workload).items():
        newly = good & np.broadcast_to(broken, good.shape)
        if newly.any():
            rejected[rule] += int(newly.sum()) * times
        good &= ~newly
    return rows.take(good)


def _layouts(model: Model, workload: TrainingWorkload, gpus: int, settled: TrainingConstraints) -> Iterator[LayoutRows]:
    """Every combination of degrees whose product is the GPUs, in no rule's way yet, with every micro-batch that divides."""
    layers, experts = len(model.layers), _experts(model)
    if not every()[settled.implementation].cuts:
        # Asked degrees stay, so that the rule that forbids them is named.
        settled = replace(
            settled,
            tp=settled.tp or 1,
            pp=settled.pp or 1,
            vpp=settled.vpp or 1,
            ep=settled.ep or 1,
            cp=settled.cp or 1,
        )
    for pp in _open(settled.pp, _divisors(gpus)):
        if gpus % pp or pp > layers:
            continue
        for tp in _open(settled.tp, _divisors(gpus // pp)):
            for cp in _open(settled.cp, _divisors(gpus // (pp * tp)) if gpus % (pp * tp) == 0 else ()):
                if gpus % (pp * tp * cp):
                    continue
                dp = gpus // (pp * tp * cp)
                if settled.dp not in (None, dp) or workload.global_batch % dp:
                    continue
                yield _combined(
                    {"tp": tp, "pp": pp, "dp": dp, "cp": cp},
                    ep=_open(settled.ep, [n for n in _divisors(experts) if (tp * dp * cp) % n == 0]),
                    vpp=_open(settled.vpp, range(1, layers // pp + 1) if pp > 1 else (1,)),
                    micro_batch=_open(settled.micro_batch, _micro_batches(workload.global_batch // dp)),
                )


def _combined(fixed: Mapping[str, int], **varied: Sequence[int] | range) -> LayoutRows:
    grid = np.meshgrid(*(np.asarray(values, dtype=np.int64) for values in varied.values()), indexing="ij")
    columns = {name: axis.ravel() for name, axis in zip(varied, grid, strict=True)}
    return LayoutRows(columns=columns | {name: np.full(grid[0].size, value) for name, value in fixed.items()})


def _micro_batches(sequences: int) -> list[int]:
    return [size for size in _divisors(sequences) if size <= _MOST_MICRO_BATCH]


def _thin(
    model: Model, accelerator: Accelerator, workload: TrainingWorkload, settled: TrainingConstraints, rows: LayoutRows
) -> NDArray[np.bool_]:
    """Rows of a large table to price: what is settled stays; of the rest what `_MOST_TENSOR_NODES` and the like leave."""
    columns = rows.columns
    kept = np.ones(len(rows), dtype=bool)
    if settled.tp is None:
        kept &= columns["tp"] <= _MOST_TENSOR_NODES * accelerator.gpus_per_node
    if settled.cp is None:
        kept &= (columns["cp"] == 1) | (workload.seq >= _LEAST_TOKENS * columns["cp"])
    if settled.vpp is None:
        for pp in np.unique(columns["pp"]):
            counts = telling_chunks(len(model.layers), int(pp))
            kept &= (columns["pp"] != pp) | np.isin(columns["vpp"], counts)
    if settled.micro_batch is None:
        for dp in np.unique(columns["dp"]):
            sizes = telling_sizes(_micro_batches(workload.global_batch // int(dp)))
            kept &= (columns["dp"] != dp) | np.isin(columns["micro_batch"], sizes)
    return kept


def _families(
    model: Model, accelerator: Accelerator, workload: TrainingWorkload, settled: TrainingConstraints
) -> Iterator[Family]:
    """Templates: recipe × ZeRO stage × schedule, each with its ladder of recompute; offload as a rescue."""
    habits = habits_of(settled.implementation, adapters=workload.trains_adapters)
    ladder = ladder_of(habits, mixture=_experts(model) > 1) if settled.recompute is None else (settled.recompute,)
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
        loss=settled.loss or habits.loss,
        dispatcher=settled.dispatcher,
        cuda_graphs=settled.cuda_graphs,
        shard_group=settled.shard_group,
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
    habits = habits_of(settled.implementation, adapters=workload.trains_adapters)
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


def rows_of_schedule(rows: LayoutRows, schedule: Schedule) -> LayoutRows:
    """Rows that a schedule is for: interleaving needs several chunks, the others take one."""
    chunks = rows.columns["vpp"]
    return rows.take(chunks > 1 if schedule == "interleaved" else chunks == 1)


def _experts(model: Model) -> int:
    return next((layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, ExpertFfn)), 1)


def _open(value: int | None, others: Sequence[int] | range) -> Sequence[int] | range:
    return others if value is None else (value,)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


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
