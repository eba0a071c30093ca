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
from trilemma.measured.training.room import with_room
from trilemma.quantities import Array
from trilemma.timing.training_intervals import SPARSE
from trilemma.timing.training_operators import training_work

#: Fewer samples than this fit nothing.
_FEWEST = 20
_FOLDS = 5
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

    Intervals of measured classes are the 5th and 95th percentile of measured over predicted seconds, each row predicted by a
    fit that left it out (five folds), apart for frameworks that few runs tell about; of unmeasured classes the same with
    whole frameworks left out.
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
    chosen = set(scored_rows(rows).values())
    samples = []
    for row in rows:
        if row.id not in chosen or row.text("measured_metric") == MEMORY or _ANOMALOUS in row.text("notes").lower():
            continue
        try:
            question = with_room(row, read_training_question(row, models_dir))
            sample = sample_of(question, measured_speed(row, question))
            if sample.weight and not any(_GUESSED in note for note in question.assumed):
                samples.append(sample)
        except (UnusableRow, InputError):
            continue
    return samples


def _spreads(design: Design, samples: Sequence[Sample], theta: Array) -> dict[str, dict[str, Any]]:
    """Factors and rows of every class. ``sparse``: frameworks told by few runs, judged like measured ones by rows left out."""
    mixture = np.array([training_work(sample.model, mtp=False).is_mixture for sample in samples])
    frameworks = np.array([sample.framework.name for sample in samples])
    told = framework_runs(samples)
    sparse = np.array(
        [told[f"{name}.{_KINDS[int(mixed)]}"] < SPARSE for name, mixed in zip(frameworks, mixture, strict=True)]
    )
    folds = np.random.default_rng(0).permutation(len(samples)) % _FOLDS
    by_row, by_framework = (_held_out(design, theta, groups) for groups in (folds, frameworks))
    found: dict[str, dict[str, Any]] = {}
    for mixed, kind in enumerate(_KINDS):
        of_kind = mixture == bool(mixed)
        for name, held, chosen in (
            ("measured", by_row, of_kind & ~sparse),
            ("sparse", by_row, of_kind & sparse),
            ("unmeasured", by_framework, of_kind),
        ):
            if np.count_nonzero(chosen) < _FEWEST_OF_CLASS:
                chosen, held = of_kind, by_framework
            ratio, weight = np.exp(design.measured[chosen] - held[chosen]), design.weights()[chosen]
            low, high = (_weighted_quantile(ratio, weight, share) for share in (0.05, 0.95))
            found[f"{kind}_{name}"] = {"step": [min(low, 0.97), max(high, 1.03)], "rows": int(chosen.sum())}
    return found


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
