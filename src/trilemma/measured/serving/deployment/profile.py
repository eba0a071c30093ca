"""A deployment's own profile: what a few measured points say of one engine on one kind of card, kept under a name.

The shipped terms are the prior; a handful of points moves the few terms that they can tell. A profile is saved only where
it predicts points that it has not seen better than the shipped terms do.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.hardware.catalogue import find
from trilemma.intervals import student_t_95
from trilemma.measured.serving.deployment.bench_files import Point
from trilemma.measured.serving.speed.figures import SpeedFigures, predict
from trilemma.measured.serving.speed.fit import fit
from trilemma.outside_files import read_text
from trilemma.quantities import Array
from trilemma.timing.coefficients import scaled
from trilemma.timing.eras import Era
from trilemma.timing.machine import beside_terms
from trilemma.timing.serving_terms import LEVELS, OwnSpread, Priors, ServingTerms, keys_of, served_as

SCHEMA = "trilemma/profile@1"
FEWEST_POINTS = 5
#: Terms that points of one deployment can tell, and how far they may move it: standard deviations of their logarithm.
_WIDTHS = {
    "stream": 0.15,
    "matmul": 0.3,
    "cache_stream": 0.3,
    "experts_stream": 0.2,
    "kernel": 0.3,
    "step": 0.7,
    "sequence": 0.7,
    "prefill_matmul": 0.3,
    "prefill_experts": 0.3,
    "request": 0.7,
    "queue": 0.7,
}
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MOST_FOLDS = 10
_MOST_BYTES = 2**20
_MOST_OFFSET = 3.0
#: No error bar is narrower than what runs of one deployment differ by among themselves (logarithm).
_LEAST_SPREAD = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Logarithms of multipliers on top of the shipped terms for one deployment (engine, card, precision).

    ``before`` and ``after`` are median errors on points left out; ``points`` are what it was fitted to. ``own`` are the error
    bars that points left out say of the model and layout measured; None in profiles that were not fitted.
    """

    name: str
    engine: str
    accelerator: str
    precision: str
    offsets: Mapping[str, float]
    before: float
    after: float
    points: tuple[Point, ...] = ()
    own: OwnSpread | None = None

    @property
    def key(self) -> str:
        return f"{self.engine} {self.accelerator} {self.precision}"

    def applied(self, terms: ServingTerms) -> ServingTerms:
        """``terms`` with the profile put on top of its deployment, which may so far have had the terms of a stand-in."""
        accelerator = find(self.accelerator)
        keys = terms.keys(self.engine, accelerator, self.precision)
        own = {}
        for term, factor in terms.factors(self.engine, accelerator, self.precision).items():
            above = sum(
                known.get(key, {}).get(term, 0.0) for known, key in zip(terms.offsets[:-1], keys[:-1], strict=True)
            )
            own[term] = math.log(factor) - above + self.offsets.get(term, 0.0)
        return replace(
            terms, offsets=(*terms.offsets[:-1], {**terms.offsets[-1], self.key: own}), profile=(self.name, self.key),
            own=self.own,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A profile and whether it is worth keeping; ``errors`` are the median errors of each figure before and after, on points
    left out."""

    profile: Profile
    better: bool
    errors: Mapping[str, tuple[float, float]]


def profile_offsets(bench: SpeedFigures, terms: ServingTerms) -> dict[str, float]:
    """What the figures of ``bench`` add to ``terms`` for its deployment."""
    start = terms.factors(bench.engine, bench.machine.accelerator, bench.precision)
    based = replace(bench, machine=_scaled(bench, start))
    levels = tuple(1e-3 if level != LEVELS[-1] else 1.0 for level in LEVELS)
    priors = Priors(widths={term: tuple(width * level for level in levels) for term, width in _WIDTHS.items()})
    fitted = fit([based], priors, most_rounds=30)
    keys = keys_of(bench.engine, bench.machine.accelerator, bench.precision)
    sums = dict.fromkeys(_WIDTHS, 0.0)
    for known, key in zip(fitted.offsets, keys, strict=True):
        for term, offset in known.get(key, {}).items():
            sums[term] += offset
    return {term: float(np.clip(total, -_MOST_OFFSET, _MOST_OFFSET)) for term, total in sums.items()}


def _scaled(bench: SpeedFigures, factors: Mapping[str, float]) -> Any:
    return bench.machine.with_coefficients(scaled(bench.machine.coefficients, factors))


def predicted(
    bench: SpeedFigures, terms: ServingTerms, offsets: Mapping[str, float], *, era: Era | None = None
) -> Array:
    """What ``terms`` and ``offsets`` on top say of the figures of ``bench``, of an engine of that ``era`` (None: the newest)."""
    where = (bench.engine, bench.machine.accelerator, bench.precision)
    age, factors = era or Era(), dict(terms.factors(*where))
    for term, factor in age.factors.items():
        factors[term] *= factor
    for term, offset in offsets.items():
        factors[term] *= math.exp(offset)
    coefficients = beside_terms(scaled(bench.machine.coefficients, factors), terms.untold(*where), age)
    settled = replace(bench, machine=bench.machine.with_coefficients(coefficients))
    return np.asarray(predict(settled, dict.fromkeys(factors, 1.0)), dtype=float)


def calibrate(bench: SpeedFigures, terms: ServingTerms, *, name: str, points: Sequence[Point]) -> Calibration:
    """The profile of ``bench``, judged on points left out in turn (all figures of one load together)."""
    check_name(name)
    loads = sorted(
        {(float(a), float(b), float(c)) for a, b, c in zip(bench.isl, bench.osl, bench.concurrency, strict=True)}
    )
    if len(loads) < FEWEST_POINTS:
        raise InputError(
            f"{len(loads)} different loads are too few to calibrate; measure at least {FEWEST_POINTS} (lengths or concurrency)"
        )
    fold_of = {load: at % min(_MOST_FOLDS, len(loads)) for at, load in enumerate(loads)}
    folds = np.array(
        [fold_of[float(a), float(b), float(c)] for a, b, c in zip(bench.isl, bench.osl, bench.concurrency, strict=True)]
    )
    said = np.zeros(len(folds))
    for fold in sorted(set(folds.tolist())):
        seen, left_out = bench.take(folds != fold), bench.take(folds == fold)
        said[folds == fold] = predicted(left_out, terms, profile_offsets(seen, terms))
    before, after = _errors(bench, predicted(bench, terms, {})), _errors(bench, said)
    profile = Profile(
        name=name,
        engine=bench.engine,
        accelerator=bench.machine.accelerator.id,
        precision=bench.precision,
        offsets=profile_offsets(bench, terms),
        before=float(np.median(before)),
        after=float(np.median(after)),
        points=tuple(points),
        own=own_spread(bench, said),
    )
    figures = {
        str(figure): (
            float(np.median(before[bench.quantity == figure])),
            float(np.median(after[bench.quantity == figure])),
        )
        for figure in dict.fromkeys(bench.quantity.tolist())
    }
    return Calibration(profile=profile, better=profile.after < profile.before, errors=figures)


def own_spread(bench: SpeedFigures, said: Array) -> OwnSpread:
    """Error bars from what points left out were off by: 90 % of a further point of this deployment, errors being log-normal
    about none. Few points widen them as Student's t does; a figure of a single point has none."""
    bounds = {}
    for figure in dict.fromkeys(bench.quantity.tolist()):
        errors = np.log(bench.measured / said)[bench.quantity == figure]
        freedom = len(errors) - 1
        if freedom < 1:
            continue
        off = math.sqrt(float(np.mean(errors**2)) * (1 + 1 / len(errors)))
        half = min(max(student_t_95(freedom) * off, _LEAST_SPREAD), _MOST_OFFSET)
        bounds[str(figure)] = (math.exp(-half), math.exp(half))
    loads = {name: getattr(bench, name) for name in ("isl", "osl", "concurrency")}
    return OwnSpread(
        served=served_as(bench.work, bench.layout), bounds=bounds,
        loads={name: (float(np.min(of)), float(np.max(of))) for name, of in loads.items()},
    )  # fmt: skip


def _errors(bench: SpeedFigures, said: Array) -> Array:
    return np.asarray(np.abs(said / bench.measured - 1.0), dtype=float)


def _own(document: Any) -> OwnSpread | None:
    """Error bars as saved. Raises `ValueError`, `TypeError` or `KeyError` where they are not bounds."""
    if document is None:
        return None
    bounds, loads = (
        {str(name): (float(low), float(high)) for name, (low, high) in document[part].items()}
        for part in ("bounds", "loads")
    )
    if not set(bounds) <= {"tpot", "ttft"} or set(loads) != {"isl", "osl", "concurrency"}:
        raise ValueError("own")
    if not all(math.exp(-_MOST_OFFSET) <= low <= 1 <= high <= math.exp(_MOST_OFFSET) for low, high in bounds.values()):
        raise ValueError("bounds")
    return OwnSpread(served=str(document["served"]), bounds=bounds, loads=loads)


def check_name(name: str) -> None:
    """Raises `InputError` for names that could lead out of the folder."""
    if _NAME.fullmatch(name) is None:
        raise InputError(
            f"--name {shorten(name)!r} is not a name; use small letters, digits, dots, dashes, such as my-h200"
        )


def folder() -> Path:
    """Where profiles live: ``$XDG_DATA_HOME/trilemma/profiles``, by default under ``~/.local/share``."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "trilemma" / "profiles"


def save(profile: Profile) -> Path:
    """Write the profile under its name; an older one of that name is replaced."""
    check_name(profile.name)
    path = folder() / f"{profile.name}.json"
    document = {"schema": SCHEMA, **asdict(profile)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{shorten(str(path))} cannot be written: {error.strerror}; set XDG_DATA_HOME") from None
    return path


def load(name: str) -> Profile:
    """The profile saved under ``name``. Raises `InputError` where there is none or it is not one of ours."""
    check_name(name)
    path = folder() / f"{name}.json"
    if not path.is_file():
        known = sorted(one.stem for one in folder().glob("*.json"))[:20] if folder().is_dir() else []
        raise InputError(
            f"no profile {name!r}; known: {', '.join(known) or 'none yet, see trilemma calibrate serving'}"
        )
    try:
        document = json.loads(read_text(path, most_bytes=_MOST_BYTES))
        if document.pop("schema") != SCHEMA:
            raise ValueError("schema")
        points = tuple(Point(**point) for point in document.pop("points"))
        own = _own(document.pop("own", None))
        profile = Profile(**document, points=points, own=own)
        if not all(
            isinstance(text, str) for text in (profile.name, profile.engine, profile.accelerator, profile.precision)
        ):
            raise TypeError("texts")
        offsets = {str(term): float(value) for term, value in profile.offsets.items()}
        if not set(offsets) <= set(_WIDTHS) or not all(abs(value) <= _MOST_OFFSET for value in offsets.values()):
            raise ValueError("offsets")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise InputError(
            f"{shorten(str(path))} is not a profile; make it again with trilemma calibrate serving"
        ) from None
    return replace(profile, offsets=offsets)
