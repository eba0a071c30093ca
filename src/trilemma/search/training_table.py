"""Every training plan of a search priced: memory first, pruned by it, then the step, one row per plan that fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.estimate.training_verdict import host_holds
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import NINETY, normal_deviations
from trilemma.memory.training import RESERVED_ABOVE, TrainingMemory, training_memory
from trilemma.memory.training_model import PreparedModels, TrainingModel
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.search.training_layouts import THINNED, LayoutRows, joined, legal, rows_of_schedule
from trilemma.search.training_space import Family, TrainingSpace
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

#: A plan that is recommended should hold: three chances of four.
SURE = 0.75
#: The share of what is not counted that three of four cases stay below, if its chance falls to zero at its most.
_UNCOUNTED_SHARE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTable:
    """Plans that fit: ``choice`` indexes ``templates``; seconds of a step, bytes of the worst rank, MFU; ``sure`` those whose
    chance of fitting is at least `SURE`.

    ``searched`` counts plans before any rule, ``legal`` those that obey the rules, ``rejected`` the others by why.
    ``device_bytes`` beyond the card are kept apart: ``nearest_bytes`` is the least need of those that do not fit.
    ``prepared`` is the model made ready, for questions about further plans.
    """

    templates: tuple[TrainingPlan, ...]
    choice: NDArray[np.int64]
    rows: LayoutRows
    step_s: NDArray[np.float64]
    device_bytes: NDArray[np.float64]
    mfu: NDArray[np.float64]
    sure: NDArray[np.bool_]
    searched: int
    legal: int
    rejected: Counter[str]
    prepared: PreparedModels
    nearest: TrainingPlan | None = None
    nearest_bytes: float = np.inf

    def __len__(self) -> int:
        return len(self.choice)

    def plan(self, at: int) -> TrainingPlan:
        """The plan of row ``at``."""
        return self.rows.one(self.templates[int(self.choice[at])], at)


@dataclass(slots=True)
class _Found:
    """What accumulates while families are priced."""

    templates: list[TrainingPlan]
    parts: list[LayoutRows]
    columns: dict[str, list[NDArray[np.float64]]]
    rejected: Counter[str]
    legal: int = 0
    searched: int = 0
    nearest: TrainingPlan | None = None
    nearest_bytes: float = np.inf


def training_table(
    model: Model, cluster: Cluster, workload: TrainingWorkload, space: TrainingSpace, *, capacity_bytes: float,
    prepared: PreparedModels | None = None,
) -> TrainingTable:  # fmt: skip
    """Price every legal plan of ``space``; those beyond ``capacity_bytes`` are counted by why.

    A row that does not fit with one mode of recompute does not fit with a lighter one, so modes are tried from the leanest
    on. ``prepared`` is the model as a table of the same load made it ready. Raises `InputError` for a card without the figures
    that timing needs.
    """
    found = _Found(
        templates=[],
        parts=[],
        columns={"choice": [], "step_s": [], "device_bytes": [], "mfu": [], "sure": []},
        rejected=Counter(),
    )
    homeless: dict[str, LayoutRows] = {}
    prepared = prepared or PreparedModels(model=model, workload=workload)
    for family in space.families:
        rows = rows_of_schedule(space.rows, family.template.schedule)
        plain = replace(family.template, offload=type(family.template.offload)())
        key = repr(plain)
        if family.rescue:
            rows = homeless.get(key, rows.take(np.zeros(len(rows), dtype=bool)))
            found.searched += len(rows) * len(family.ladder)
            found.legal += len(rows) * len(family.ladder)
        else:
            thinned = len(rows_of_schedule(space.thinned, family.template.schedule)) * len(family.ladder)
            found.rejected[THINNED] += thinned
            found.searched += len(rows) * len(family.ladder) + thinned
            rows = legal(model, workload, family.template, rows, found.rejected, times=len(family.ladder))
            found.legal += len(rows) * len(family.ladder)
        left = _price(prepared.of(family.template), cluster, workload, family, rows, capacity_bytes, found)
        if not family.rescue:
            homeless[key] = left
    found.rejected = +found.rejected
    columns = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in found.columns.items()}
    return TrainingTable(
        templates=tuple(found.templates),
        choice=columns["choice"].astype(np.int64),
        rows=joined(found.parts),
        step_s=columns["step_s"],
        device_bytes=columns["device_bytes"],
        mfu=columns["mfu"],
        sure=columns["sure"].astype(bool),
        searched=found.searched,
        legal=found.legal,
        rejected=found.rejected,
        prepared=prepared,
        nearest=found.nearest,
        nearest_bytes=found.nearest_bytes,
    )


def _price(
    prepared: TrainingModel, cluster: Cluster, workload: TrainingWorkload, family: Family, rows: LayoutRows,
    capacity_bytes: float, found: _Found,
) -> LayoutRows:  # fmt: skip
    """Climb the ladder of recompute with the rows that still fit; gives back those that fit with no mode."""
    model = prepared.model
    homeless = rows.take(np.zeros(len(rows), dtype=bool))
    for step, mode in enumerate(family.ladder):
        if not len(rows):
            break
        template = replace(family.template, recompute=mode)
        memory = training_memory(model, cluster, rows.plan(template), workload, prepared=prepared)
        need = np.broadcast_to(np.asarray(memory.device_bytes, dtype=float), (len(rows),))
        fits = need <= capacity_bytes
        held = need + _margin(memory) <= capacity_bytes
        sure = np.broadcast_to(held & host_holds(memory, cluster), fits.shape)[fits]
        lost = int((~fits).sum())
        if lost:
            left = len(family.ladder) - step
            why = (
                "does not fit the card even with full recompute"
                if step == 0
                else f"does not fit with recompute {_words(mode)}"
            )
            found.rejected[why] += lost * left
            _nearest(found, rows, template, need, fits)
        if step == 0:
            homeless = rows.take(~fits)
        rows, need = rows.take(fits), need[fits]
        if not len(rows):
            break
        moved = {name: np.broadcast_to(value, fits.shape)[fits] for name, value in memory.moved_bytes.items()}
        step_time = training_step(model, cluster, rows.plan(template), workload, moved_bytes=moved or None)
        found.columns["choice"].append(np.full(len(rows), float(len(found.templates))))
        found.columns["step_s"].append(np.broadcast_to(step_time.step_s, need.shape))
        found.columns["device_bytes"].append(need)
        found.columns["sure"].append(sure.astype(float))
        found.columns["mfu"].append(np.broadcast_to(step_time.mfu, need.shape))
        found.templates.append(template)
        found.parts.append(rows)
    return homeless


def _margin(memory: TrainingMemory) -> Any:
    """Bytes that have to stay free for a chance of `SURE`, with the interval of reserved bytes taken as normal."""
    half_width = (1.0 + RESERVED_ABOVE) / 2 * memory.spread * np.asarray(memory.reserved_bytes)
    beside = np.asarray(memory.uncounted_bytes) + np.asarray(memory.either_bytes)
    return normal_deviations(SURE) * half_width / NINETY + _UNCOUNTED_SHARE * beside


def _nearest(
    found: _Found, rows: LayoutRows, template: TrainingPlan, need: NDArray[np.float64], fits: NDArray[np.bool_]
) -> None:
    """Keeps the plan that misses the card by least, for the answer where nothing fits."""
    over = np.where(fits, np.inf, need)
    at = int(over.argmin())
    if over[at] < found.nearest_bytes:
        found.nearest, found.nearest_bytes = rows.one(template, at), float(over[at])


def _words(mode: object) -> str:
    parts = getattr(mode, "parts", ())
    name = str(getattr(mode, "mode", mode))
    return f"{name} ({', '.join(parts)})" if parts else name


def order_of(table: TrainingTable) -> NDArray[np.int64]:
    """Rows from the fastest on, those that are sure to fit before the others; of equally fast ones the smaller first."""
    return np.lexsort((table.device_bytes, np.round(table.step_s, 9), ~table.sure))


def best_of_each(table: TrainingTable, ranked: Sequence[int] | NDArray[np.int64], *, most: int) -> list[int]:
    """The first of ``ranked`` for each way to cut the model (tp, pp, ep), so that variants do not fill the list."""
    seen: set[tuple[int, ...]] = set()
    kept: list[int] = []
    columns = [table.rows.columns[name] for name in ("tp", "pp", "ep")]
    for at in ranked:
        key = tuple(int(column[at]) for column in columns)
        if key in seen:
            continue
        seen.add(key)
        kept.append(int(at))
        if len(kept) == most:
            break
    return kept
