"""Layouts of a training as rows: the degrees and micro-batches that are legal, thinned where there are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans.frameworks import every
from trilemma.plans.plan import Layout
from trilemma.plans.training import Dispatcher, Loss, Offload, Recompute, Schedule, TrainingPlan
from trilemma.search.training_rules import training_violations
from trilemma.search.training_thinning import telling_chunks, telling_sizes
from trilemma.versions import DEFAULT_FRAMEWORK
from trilemma.workloads import TrainingWorkload

DEGREES = ("tp", "pp", "vpp", "dp", "ep", "cp")
#: Larger micro-batches than this fill no kernel better.
_MOST_MICRO_BATCH = 64
#: Larger tables are thinned, so that a search over any cluster answers in seconds.
MOST_ROWS = 60_000
THINNED = (
    "left unpriced in a table of this size: next to a plan that was priced, or cut finer than any hardware favours"
)
#: What thinning leaves: tensor parallelism within two machines, beyond which each layer's sums cross the network and any other
#: cut costs less; tokens of a rank that give context parallelism's two pieces (Llama 3, 2024, section 3.3.2) the 128 rows of a
#: tile; of micro-batches and chunks those that tell (`training_thinning`).
_MOST_TENSOR_NODES, _LEAST_TOKENS = 2, 256


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
    overlap_expert: bool = False
    cuda_graphs: bool = False
    step_graph: bool = False
    fused_experts: bool = False
    shard_group: int | None = None
    loss: Loss | None = None
    loss_tile: int | None = None
    mlp_tiles: int | None = None
    implementation: str = DEFAULT_FRAMEWORK
    version: str | None = None

    def __post_init__(self) -> None:
        if self.loss_tile is not None and self.loss not in (None, "fused"):
            raise InputError(
                f"`loss_tile` {self.loss_tile} does nothing to a {self.loss} loss; use `loss` fused, or leave the tile out"
            )


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


def layout_rows(
    model: Model, workload: TrainingWorkload, gpus: int, settled: TrainingConstraints
) -> Iterator[LayoutRows]:
    """Every combination of degrees whose product is the GPUs, in no rule's way yet, with every micro-batch that divides."""
    layers, experts = len(model.layers), experts_of(model)
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


def thin(
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


def rows_of_schedule(rows: LayoutRows, schedule: Schedule) -> LayoutRows:
    """Rows that a schedule is for: interleaving needs several chunks, the others take one."""
    chunks = rows.columns["vpp"]
    return rows.take(chunks > 1 if schedule == "interleaved" else chunks == 1)


def experts_of(model: Model) -> int:
    return next((layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, ExpertFfn)), 1)


def _open(value: int | None, others: Sequence[int] | range) -> Sequence[int] | range:
    return others if value is None else (value,)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
