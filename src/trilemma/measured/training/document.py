"""From a measured training table to the data file of coefficients: fit, intervals from rows held out, text."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.data.files import table_text
from trilemma.errors import InputError, shorten
from trilemma.measured.selection import parse_condition, select
from trilemma.measured.tables import Row, UnusableRow, read_table
from trilemma.measured.training.figures import MEMORY, measured_speed, scored_rows
from trilemma.measured.training.fit import Design, Sample
from trilemma.measured.training.question import read_training_question
from trilemma.measured.training.refit import sample_of
from trilemma.measured.training.room import as_it_ran, states_chunks
from trilemma.quantities import Array
from trilemma.timing.training_intervals import SPARSE
from trilemma.timing.training_operators import training_work

#: Percentiles that bound ranges: of a source that neither the fit nor its range saw nine rows of ten lie between these two.
_TAIL = 0.04
#: Fewer samples than this fit nothing.
_FEWEST = 20
_FEWEST_OF_CLASS = 8
_KINDS = ("dense", "mixture")
#: Marks of rows that contradict themselves or their neighbours: judged like any other, never fitted.
_ANOMALOUS = "anomaly"
_ABOUT = (
    "Values multiply datasheet rates (timing/training_coefficients.py); keyed ones are offsets shrunk to 1, priors in "
    "training_time_priors.toml. `runs` and `cards`: runs behind each framework and each card and kind of model, by weight. "
    "Made by `trilemma calibrate training`, not by hand."
)
#: Runs whose batches had to be assumed say nothing of efficiency.
_GUESSED = "batch"


def fit_table(path: str | Path, *, where: Sequence[str] = (), models_dir: str | None = None) -> str:
    """Fit the training rows of ``path`` and return the data file as text. Raises `InputError`.

    Intervals are percentiles (`_TAIL`) of measured over predicted seconds, each row predicted by a fit that left its source out,
    apart for what many, few and no runs of other sources tell about.
    """
    table = read_table(path)
    if table.kind.name != "training":
        raise InputError(f"{shorten(str(path))} is a {table.kind.name} table; give a training table")
    rows = select(table.rows, [parse_condition(text, table.columns) for text in where])
    samples = read_samples(rows, models_dir)
    if len(samples) < _FEWEST:
        raise InputError(f"{shorten(str(path))}: {len(samples)} usable speeds; a fit needs at least {_FEWEST}")
    design = Design(samples)
    theta = design.fit()
    spreads = _spreads(design, samples, theta)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    told = {"runs": framework_runs(samples), "cards": card_runs(samples)}
    return _text(design, theta, spreads, told, table=table.name, digest=digest, where=where)


def read_samples(rows: Sequence[Row], models_dir: str | None = None) -> list[Sample]:
    """One measured step per configuration; rows that cannot be read or mark themselves anomalous are left out."""
    chosen, chunked = set(scored_rows(rows).values()), states_chunks(rows)
    samples = []
    for row in rows:
        if row.id not in chosen or row.text("measured_metric") == MEMORY or _ANOMALOUS in row.text("notes").lower():
            continue
        try:
            question = as_it_ran(row, read_training_question(row, models_dir), chunked)
            sample = sample_of(question, measured_speed(row, question))
            if sample.weight and not any(_GUESSED in note for note in question.assumed):
                samples.append(sample)
        except (UnusableRow, InputError):
            continue
    return samples


def _spreads(design: Design, samples: Sequence[Sample], theta: Array) -> dict[str, dict[str, Any]]:
    """Factors and rows of every class, from rows whose source a fit never saw: the class of a row is that which the runs left
    name, and a source weighs as the root of its rows. Classes that few rows are in take whole frameworks left out; none is
    narrower than the class that knows more.
    """
    mixture = np.array([training_work(sample.model, mtp=False).is_mixture for sample in samples])
    sources = np.array([sample.source for sample in samples])
    frameworks = np.array([sample.framework.name for sample in samples])
    by_source, by_framework = (_held_out(design, theta, groups) for groups in (sources, frameworks))
    classes = np.array([_class_without(samples, mixture, sources, at) for at in range(len(samples))])
    found: dict[str, dict[str, Any]] = {}
    for mixed, kind in enumerate(_KINDS):
        low, high = 0.97, 1.03
        for name in ("measured", "sparse", "unmeasured"):
            chosen, held = (mixture == bool(mixed)) & (classes == name), by_source
            if np.count_nonzero(chosen) < _FEWEST_OF_CLASS:
                chosen, held = mixture == bool(mixed), by_framework
            ratio, weight = np.exp(design.measured - held), design.weights() * chosen
            weight = weight / np.sqrt([max(weight[sources == one].sum(), 1e-12) for one in sources])
            low = min(low, _weighted_quantile(ratio[chosen], weight[chosen], _TAIL))
            high = max(high, _weighted_quantile(ratio[chosen], weight[chosen], 1 - _TAIL))
            found[f"{kind}_{name}"] = {"step": [low, high], "rows": int(chosen.sum())}
    return found


def _class_without(samples: Sequence[Sample], mixture: Array, sources: Array, at: int) -> str:
    """The class of sample ``at`` by the runs of other sources of its kind of model."""
    others = [samples[int(i)] for i in np.flatnonzero((mixture == mixture[at]) & (sources != sources[at]))]
    one = samples[at]
    runs = sum(other.weight for other in others if other.framework.name == one.framework.name)
    card = any(other.cluster.accelerator.id == one.cluster.accelerator.id for other in others)
    return "unmeasured" if not runs or not card else "measured" if runs >= SPARSE else "sparse"


def framework_runs(samples: Sequence[Sample]) -> dict[str, float]:
    """How many runs, by weight, tell about each framework and kind of model (``torchtitan.dense``)."""
    found: dict[str, float] = {}
    for sample in samples:
        name = f"{sample.framework.name}.{_KINDS[training_work(sample.model, mtp=False).is_mixture]}"
        found[name] = found.get(name, 0.0) + sample.weight
    return found


def card_runs(samples: Sequence[Sample]) -> dict[str, float]:
    """How many runs, by weight, tell about each card and kind of model (``nvidia-h100-sxm5-80gb.mixture``)."""
    found: dict[str, float] = {}
    for sample in samples:
        name = f"{sample.cluster.accelerator.id}.{_KINDS[training_work(sample.model, mtp=False).is_mixture]}"
        found[name] = found.get(name, 0.0) + sample.weight
    return found


def _held_out(design: Design, theta: Array, groups: Any) -> Array:
    held = np.empty(design.measured.size)
    for group in np.unique(groups):
        out = groups == group
        held[out] = design.predict(design.fit(~out, first=theta))[out]
    return held


def _weighted_quantile(values: Array, weights: Array, share: float) -> float:
    order = np.argsort(values)
    reached = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return float(np.interp(share, reached, values[order]))


def _text(
    design: Design,
    theta: Array,
    spreads: Mapping[str, Mapping[str, Any]],
    told: Mapping[str, Mapping[str, float]],
    *,
    table: str,
    digest: str,
    where: Sequence[str],
) -> str:
    shown = "".join(f" --where {condition}" for condition in where)
    return table_text(
        {
            "about": _ABOUT,
            "schema": 1,
            "as_of": datetime.date.today().isoformat(),
            "source": f"{design.measured.size} measured steps of {table} (sha256 {digest}…){shown}",
            "coefficients": {name: _rounded(np.exp(value), 5) for name, value in zip(design.names, theta, strict=True)},
            **{what: {name: _rounded(count, 3) for name, count in sorted(runs.items())} for what, runs in told.items()},
            "spread": {
                name: {"step": [_rounded(bound, 3) for bound in spread["step"]], "rows": spread["rows"]}
                for name, spread in spreads.items()
            },
        }
    )


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
