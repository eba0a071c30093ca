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
from trilemma.measured.training.spread import KINDS, bounds_of, classes_of, mixtures_of
from trilemma.quantities import Array
from trilemma.timing.training_operators import training_work

#: Fewer samples than this fit nothing.
_FEWEST = 20
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

    Intervals are percentiles of measured over predicted seconds, each row predicted by a fit that left its source out,
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
    """Factors and rows of every class, from rows whose source a fit never saw (`trilemma.measured.training.spread`). Classes that
    few rows are in take whole frameworks left out."""
    mixture, sources = mixtures_of(samples), [sample.source for sample in samples]
    frameworks = np.array([sample.framework.name for sample in samples])
    ratio = {
        name: np.exp(design.measured - _held_out(design, theta, groups))
        for name, groups in (("class", np.array(sources)), ("kind", frameworks))
    }
    found = bounds_of(ratio, design.weights(), sources, mixture, classes_of(samples, mixture, sources))
    return {name: {"step": [low, high], "rows": rows} for name, (low, high, rows) in found.items()}


def framework_runs(samples: Sequence[Sample]) -> dict[str, float]:
    """How many runs, by weight, tell about each framework and kind of model (``torchtitan.dense``)."""
    found: dict[str, float] = {}
    for sample in samples:
        name = f"{sample.framework.name}.{KINDS[training_work(sample.model, mtp=False).is_mixture]}"
        found[name] = found.get(name, 0.0) + sample.weight
    return found


def card_runs(samples: Sequence[Sample]) -> dict[str, float]:
    """How many runs, by weight, tell about each card and kind of model (``nvidia-h100-sxm5-80gb.mixture``)."""
    found: dict[str, float] = {}
    for sample in samples:
        name = f"{sample.cluster.accelerator.id}.{KINDS[training_work(sample.model, mtp=False).is_mixture]}"
        found[name] = found.get(name, 0.0) + sample.weight
    return found


def _held_out(design: Design, theta: Array, groups: Any) -> Array:
    held = np.empty(design.measured.size)
    for group in np.unique(groups):
        out = groups == group
        held[out] = design.predict(design.fit(~out, first=theta))[out]
    return held


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
