"""Memory of a training step on every rank of a pipeline: state, activations, buffers, and what the allocator reserves.

Peaks are looked for at four moments of a step: when the loss is computed (all activations and logits, gradients only where
they persist), when the first layer runs backward (its recomputed tensors and gradients being reduced), when backward ends
(all gradients, no activations) and when the optimizer runs. Lines are those of the worst moment of the worst stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError, PlanWarning
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.memory.companions import with_companions
from trilemma.memory.ledger import Budget, Ledger, Line
from trilemma.memory.row_terms import row_terms
from trilemma.memory.training_model import TrainingModel, prepare
from trilemma.memory.training_moments import LINES, Moments, moments
from trilemma.memory.uncounted import most_uncounted, second_moment_copy, uneven_routing
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.quantities import Numbers
from trilemma.workloads import TrainingWorkload

_OUTSIDE = ("context", "fragmentation")
#: The interval of reserved bytes reaches so much farther up than down: allocators fragment, they do not compact.
RESERVED_ABOVE = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """One pipeline stage: its ledger, micro-batches in flight, decoder layers."""

    stage: int
    ledger: Ledger
    in_flight: float
    layers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMemory:
    """Memory of the worst rank. Figures are numbers, or arrays (plans,) where the plan is a table.

    ``allocated_bytes`` is what tensors occupy at the peak (torch.cuda.max_memory_allocated), ``reserved_bytes`` what the
    caching allocator took from the device for them (max_memory_reserved): that, with ``outside_bytes`` (CUDA context,
    communicators), is what runs out of memory. ``ledger`` sums to ``device_bytes``.

    ``categories_bytes`` are weights, gradients, master weights, optimizer state and activations of a stage, each at its own
    peak (the largest such sum of any stage): more tensor parallelism never raises it, though the worst moment and the worst
    stage may change. ``moved_bytes`` are bytes over the host link in one optimizer step, ``host_bytes`` what is kept there;
    ``uncounted_bytes`` the most that parts in no line may add, ``either_bytes`` what is there or not (`memory.uncounted`);
    ``resume_peak_bytes`` is allocated while a checkpoint loads. ``ranks`` holds every stage of a single plan.
    """

    ledger: Ledger
    allocated_bytes: Any
    reserved_bytes: Any
    outside_bytes: Any
    spread: float
    in_flight: Any
    categories_bytes: Any = 0.0
    moved_bytes: Mapping[str, Any] = field(default_factory=dict)
    host_bytes: Any = 0.0
    uncounted_bytes: Any = 0.0
    either_bytes: Any = 0.0
    cached_bytes: Any = 0.0
    resume_peak_bytes: Any = 0.0
    ranks: tuple[StageMemory, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()

    @property
    def device_bytes(self) -> Any:
        return self.reserved_bytes + self.outside_bytes

    @property
    def allocated(self) -> Interval:
        """Peak of allocated bytes of a single plan with its 90 % interval."""
        return Interval.around(float(self.allocated_bytes), self.spread)

    @property
    def reserved(self) -> Interval:
        """Peak of reserved bytes of a single plan with its 90 % interval; never below what is allocated."""
        value = float(self.reserved_bytes)
        low = max(value * (1 - self.spread), min(float(self.allocated_bytes) * (1 - self.spread / 2), value))
        return Interval(value=value, low=low, high=value * (1 + RESERVED_ABOVE * self.spread))


def training_memory(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, *, all_stages: bool | None = None,
    prepared: TrainingModel | None = None,
) -> TrainingMemory:  # fmt: skip
    """Memory of ``workload`` under ``plan``, one plan or a table of them (arrays in ``layout`` and ``micro_batch``).

    ``all_stages`` computes every pipeline stage and fills ``ranks`` (default: for a single plan only; a table needs the
    worst stage alone). ``prepared`` is what `prepare` made of the model for a plan of the same recipe, optimizer and
    implementation. Raises `InputError` where a layout cannot hold the model's layers.
    """
    prepared = prepared or prepare(model, plan, workload)
    shape = _shape(plan)
    single = shape == ()
    every = single if all_stages is None else all_stages
    rows = {name: _rows(value, shape) for name, value in _numbers(plan).items()}
    count = len(rows["pp"])
    lines = {name: np.zeros(count) for name in LINES}
    held, resume, categories, apart, cached = np.zeros((5, count))
    moved: dict[str, NDArray[np.float64]] = {}
    host = np.zeros(count)
    ranks: tuple[StageMemory, ...] = ()
    every_row = _select(plan, rows, np.arange(count), plan.layout.pp, plan.layout.vpp)
    terms = row_terms(prepared, every_row, workload)
    for pp, vpp, here in _by_pipeline(rows["pp"], rows["vpp"]):
        part = _select(plan, rows, here, pp, vpp)
        found = moments(prepared, part, workload, cluster, terms.take(here), pp=pp, vpp=vpp, every=every)
        worst = np.argmax(found.reserved, axis=0)
        take = (worst, np.arange(len(here)))
        for name in LINES:
            lines[name][here] = found.lines[name][take]
        held[here], resume[here], host[here] = found.in_flight[take], found.resume[take], found.host[take]
        categories[here] = found.categories.max(axis=0)
        apart[here], cached[here] = found.apart[take], found.cached[take]
        for name, value in found.moved.items():
            moved.setdefault(name, np.zeros(count))[here] = value[take]
        if single and every:
            ranks = _ranks(found, prepared)
    shaped = {name: _unrows(value, shape) for name, value in lines.items()}
    ledger = Ledger(lines=tuple(_line(name, value, prepared) for name, value in shaped.items() if np.any(value)))
    inside = sum(value for name, value in lines.items() if name not in _OUTSIDE or name == "fragmentation")
    uncounted = most_uncounted(model, every_row, workload) + uneven_routing(
        model, every_row, workload, inside, prepared.facts
    )
    either = apart + second_moment_copy(plan, lines["optimizer"], prepared.facts)
    found_memory = TrainingMemory(
        ledger=ledger,
        allocated_bytes=ledger.total("inside"),
        reserved_bytes=ledger.total("inside") + np.rint(shaped["fragmentation"]),
        outside_bytes=np.rint(shaped["context"]),
        spread=prepared.facts["spread"],
        in_flight=_unrows(held, shape),
        categories_bytes=_unrows(categories, shape),
        moved_bytes={name: _unrows(value, shape) for name, value in moved.items()},
        host_bytes=_unrows(host, shape),
        resume_peak_bytes=_unrows(resume, shape),
        uncounted_bytes=_unrows(uncounted + np.zeros(count), shape),
        either_bytes=_unrows(either + np.zeros(count), shape),
        cached_bytes=_unrows(cached, shape),
        ranks=ranks,
        warnings=prepared.warnings,
    )
    return with_companions(found_memory, model, cluster, plan)


def _numbers(plan: TrainingPlan) -> dict[str, Any]:
    layout = plan.layout
    found = {name: getattr(layout, name) for name in ("tp", "pp", "vpp", "dp", "ep", "cp")}
    found["micro_batch"] = plan.micro_batch
    for name in ("expert_tp", "shard_group"):
        if getattr(plan, name) is not None:
            found[name] = getattr(plan, name)
    return found


def _shape(plan: TrainingPlan) -> tuple[int, ...]:
    shape = np.broadcast_shapes(*(np.shape(value) for value in _numbers(plan).values()))
    if len(shape) > 1:
        raise InputError(f"a table of plans is one-dimensional, not of shape {shape}")
    return shape


def _rows(value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.broadcast_to(np.asarray(value), shape or (1,)).reshape(-1)


def _by_pipeline(pp: NDArray[Any], vpp: NDArray[Any]) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Each pair of ``pp`` and ``vpp`` with the rows that have it."""
    key = pp.astype(np.int64) << 21 | vpp.astype(np.int64)
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for here in np.split(order, starts[1:]):
        yield int(pp[here[0]]), int(vpp[here[0]]), here


def _unrows(value: NDArray[np.float64], shape: tuple[int, ...]) -> Any:
    return float(value[0]) if shape == () else value


def _select(
    plan: TrainingPlan, rows: Mapping[str, NDArray[Any]], here: NDArray[Any], pp: Numbers, vpp: Numbers
) -> TrainingPlan:
    picked = {name: value[here] for name, value in rows.items()}
    layout = replace(plan.layout, pp=pp, vpp=vpp, **{name: picked[name] for name in ("tp", "dp", "ep", "cp")})
    extra = {name: picked[name] for name in ("expert_tp", "shard_group") if name in picked}
    return replace(plan, layout=layout, micro_batch=picked["micro_batch"], **extra)


def _line(name: str, value: Any, prepared: TrainingModel) -> Line:
    budget: Budget = "outside" if name in _OUTSIDE else "inside"
    spread = prepared.facts["spread"] if name not in ("weights", "gradients", "master_weights", "optimizer") else 0.0
    return Line(
        name=name, bytes=value, low=value * (1 - spread), high=value * (1 + spread), budget=budget,
        formula=prepared.formulas.get(name, ""), inputs=prepared.inputs, source=prepared.sources.get(name, ""),
    )  # fmt: skip


def _ranks(found: Moments, prepared: TrainingModel) -> tuple[StageMemory, ...]:
    ranks = []
    for row, stage in enumerate(found.stages.index.tolist()):
        lines = {name: float(value[row, 0]) for name, value in found.lines.items()}
        ranks.append(
            StageMemory(
                stage=int(stage),
                ledger=Ledger(lines=tuple(_line(name, value, prepared) for name, value in lines.items() if value)),
                in_flight=float(found.in_flight[row, 0]),
                layers=int(found.stages.counts[row].sum()),
            )
        )
    return tuple(ranks)


def checkpoint_staging_bytes(model: Model, plan: TrainingPlan, cluster: Cluster) -> float:
    """Host memory per node that a checkpoint needs when every rank stages all it owns at once: weights, master weights and
    moments of the whole model over the nodes that write them.

    Bytes, a scalar. Source: torch.distributed.checkpoint's state_dict_saver.py (async_save) copies what it saves to the
    host.
    """
    prepared = prepare(model, plan, TrainingWorkload(seq=1, global_batch=1))
    return prepared.checkpoint_bytes / cluster.nodes
