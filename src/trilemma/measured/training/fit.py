"""Coefficients of training time fitted to measured tables, and the intervals that their residuals give.

The fit moves the logarithm of every coefficient that some row names (`timing.training_coefficients.rate_terms`), held by a
prior each; keyed ones (card, framework, era) are offsets shrunk to 1, so that a card or framework with two rows tells little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.hardware.cluster import Cluster
from trilemma.measured.robust_fit import robust_fit
from trilemma.models.architecture import Model
from trilemma.plans.training import Schedule, TrainingPlan
from trilemma.quantities import Array
from trilemma.timing.training_coefficients import TrainingSetting, rate_terms
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_frameworks import FrameworkTiming
from trilemma.timing.training_loads import Loads, training_loads
from trilemma.timing.training_operators import run_work
from trilemma.timing.training_step import step_lines
from trilemma.workloads import TrainingWorkload

_STEP = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One measured step: what was run, by what software, how long it took in seconds, the source whose rows it counts among,
    and how much it counts (1 where source and layout are complete)."""

    model: Model
    cluster: Cluster
    plan: TrainingPlan
    workload: TrainingWorkload
    framework: FrameworkTiming
    era: str
    measured_s: float
    source: str
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Samples of one schedule as arrays. ``constants`` (rates, rows) are logarithms of datasheet values; ``incidence``
    (rates, rows, coefficients) says which coefficients multiply which rate."""

    rows: Any
    schedule: Schedule
    loads: Any
    pp: Array
    vpp: Array
    gpus: Array
    overlap: Array
    rates: tuple[str, ...]
    constants: Array
    incidence: Any


class Design:
    """Everything about a list of samples that does not change while coefficients move."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.measured = np.log([sample.measured_s for sample in samples])
        self.sources = np.array([sample.source for sample in samples])
        self.trust = np.array([sample.weight for sample in samples])
        prepared = [_prepare(sample) for sample in samples]
        self.names = tuple(sorted({name for _, terms, _ in prepared for _, names in terms.values() for name in names}))
        self.terms = [terms for _, terms, _ in prepared]
        at = {name: index for index, name in enumerate(self.names)}
        groups: dict[str, list[int]] = {}
        for index, sample in enumerate(samples):
            groups.setdefault(sample.plan.schedule, []).append(index)
        self.batches = [_batch(schedule, rows, samples, prepared, at) for schedule, rows in groups.items()]
        self.start, self.spread = _priors(self.names)

    def predict(self, theta: Array) -> Array:
        """Logarithm of seconds of every sample's step (rows,) under logarithms of coefficients (n,)."""
        found = np.empty(self.measured.size)
        for batch in self.batches:
            found[batch.rows] = _log_step(batch, batch.constants + batch.incidence @ theta)
        return found

    def slopes(self, theta: Array) -> Array:
        """Derivatives of `predict` (rows, n): by rates numerically, from rates to coefficients exactly."""
        found = np.empty((self.measured.size, len(self.names)))
        for batch in self.batches:
            logs = batch.constants + batch.incidence @ theta
            base = _log_step(batch, logs)
            by_rate = np.empty_like(logs)
            for index in range(len(batch.rates)):
                moved = logs.copy()
                moved[index] += _STEP
                by_rate[index] = (_log_step(batch, moved) - base) / _STEP
            found[batch.rows] = np.einsum("kr,krn->rn", by_rate, batch.incidence)
        return found

    def fit(self, keep: Any = None, first: Array | None = None) -> Array:
        """Logarithms of coefficients from the rows in ``keep`` (all by default); what none of them names stays at its prior."""
        chosen = np.ones(self.measured.size, dtype=bool) if keep is None else np.asarray(keep, dtype=bool)
        return robust_fit(
            lambda theta: self.predict(theta) - self.measured, self.slopes, self.start, self.spread,
            weights=np.where(chosen, self.weights(), 0.0), noise=_document()["noise"], first=first,
        )  # fmt: skip

    def named_only(self, held: Any) -> list[str]:
        """Coefficients that only the rows in ``held`` name, so that a fit without them leaves these at their priors."""
        outside: set[str] = set()
        inside: set[str] = set()
        for row, terms in enumerate(self.terms):
            (inside if held[row] else outside).update(name for _, names in terms.values() for name in names)
        return sorted(inside - outside)

    def weights(self) -> Array:
        """How much each row counts: its own weight, and less each in sources with more than forty (with the square root)."""
        _, inverse, counts = np.unique(self.sources, return_inverse=True, return_counts=True)
        return np.asarray(self.trust * np.minimum(1.0, np.sqrt(40 / counts[inverse])))


def _log_step(batch: _Batch, logs: Array) -> Array:
    lines, _, _ = step_lines(
        batch.loads, dict(zip(batch.rates, np.exp(logs), strict=True)), schedule=batch.schedule, layout_pp=batch.pp,
        layout_vpp=batch.vpp, gpus=batch.gpus, overlap_data=batch.overlap,
    )  # fmt: skip
    return np.asarray(np.log(sum(lines.values())))


def _prepare(sample: Sample) -> tuple[Loads, dict[str, tuple[float, tuple[str, ...]]], TrainingSetting]:
    work = run_work(sample.model, implementation=sample.plan.implementation, mtp=sample.plan.mtp)
    fabric = Fabric.of(sample.cluster)
    setting = TrainingSetting.of(
        sample.plan, sample.cluster, mixture=work.is_mixture, framework=sample.framework, era=sample.era
    )
    loads = training_loads(work, sample.plan, sample.workload, fabric, dispatcher=setting.dispatcher)
    return loads, rate_terms(setting), setting


def _batch(
    schedule: str, rows: Sequence[int], samples: Sequence[Sample], prepared: Sequence[Any], at: Mapping[str, int]
) -> _Batch:
    rates = tuple(prepared[rows[0]][1])
    constants = np.array([[np.log(prepared[row][1][rate][0]) for row in rows] for rate in rates])
    incidence = np.zeros((len(rates), len(rows), len(at)))
    for i, rate in enumerate(rates):
        for j, row in enumerate(rows):
            for name in prepared[row][1][rate][1]:
                incidence[i, j, at[name]] = 1.0
    layouts = [samples[row].plan.layout for row in rows]
    return _Batch(
        rows=np.array(rows),
        schedule=schedule,  # type: ignore[arg-type]
        loads=_stacked([prepared[row][0] for row in rows]),
        pp=np.array([layout.pp for layout in layouts], dtype=float),
        vpp=np.array([layout.vpp for layout in layouts], dtype=float),
        gpus=np.array([layout.gpus for layout in layouts], dtype=float),
        overlap=np.array([prepared[row][2].overlap_data for row in rows], dtype=float),
        rates=rates,
        constants=constants,
        incidence=incidence,
    )


def _stacked(parts: Sequence[Any]) -> Any:
    """Values of one shape with arrays of all samples in place of numbers."""
    first = parts[0]
    if is_dataclass(first):
        return type(first)(**{f.name: _stacked([getattr(part, f.name) for part in parts]) for f in fields(first)})  # type: ignore[misc]
    if isinstance(first, tuple):
        return tuple(_stacked(list(column)) for column in zip(*parts, strict=True))
    return np.array([float(part) for part in parts])


def _priors(names: Sequence[str]) -> tuple[Array, Array]:
    known: Mapping[str, Sequence[float]] = _document()["prior"]
    means, spreads = [], []
    for name in names:
        key = "era_mixture" if name.startswith("era.") and name.endswith(".mixture") else name
        while key not in known:
            key = key.rpartition(".")[0]
        means.append(np.log(known[key][0]))
        spreads.append(known[key][1])
    return np.array(means), np.array(spreads)


@cache
def _document() -> Mapping[str, Any]:
    return read_data("coefficients/training_time_priors.toml")
