"""Settling a prediction: measured against said, and what the runs add to the profile of the deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trilemma.calibrate import serving_profile
from trilemma.calibrate.bench_files import Point
from trilemma.calibrate.prediction import Prediction
from trilemma.calibrate.serving_points import bench_of
from trilemma.calibrate.serving_profile import FEWEST_POINTS, Profile, predicted
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.timing.serving_terms import ServingTerms

#: A run counts as the predicted load where lengths and requests in flight are this near to it.
_NEAR = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One figure of one run. ``low`` and ``high`` bound the prediction where the run is of the very load predicted."""

    figure: str
    isl: float
    osl: float
    concurrency: float
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool | None:
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """Scores of all runs, the profile that now holds them and whether it predicts better than without.

    Runs of prefill and decode apart belong to no engine's profile: ``profile`` is None.
    """

    scores: tuple[Score, ...]
    profile: Profile | None
    fitted: bool


def settle(
    prediction: Prediction, points: Sequence[Point], *, name: str, terms: ServingTerms, models_dir: str | None = None
) -> Settlement:
    """Score ``points`` and add them to the profile ``name`` (made where there is none).

    The profile is fitted again to all its points once there are enough loads, and only where that predicts points left out
    better; else it keeps what it said. Engines side by side share the requests in flight: the profile is of one of them.
    Raises `InputError` for runs of another deployment's profile, and for pools apart under another load than predicted.
    """
    if not points:
        raise InputError("no run to settle; give the result file of the benchmark")
    if len(prediction.plan.pools) > 1:
        return Settlement(scores=_of_pools(prediction, points), profile=None, fitted=False)
    replicas = prediction.plan.pool.replicas
    points = [replace(point, concurrency=max(point.concurrency / replicas, 1.0)) for point in points]
    prediction = replace(prediction, concurrency=max(prediction.concurrency / replicas, 1.0))
    cluster = Cluster(
        accelerator=find(prediction.accelerator), gpus=prediction.gpus, gpus_per_node=prediction.gpus_per_node
    )
    model = load_model(prediction.model, models_dir=models_dir)
    bench = bench_of(points, model=model, cluster=cluster, plan=prediction.plan)
    known = _known(name)
    key = f"{bench.engine} {cluster.accelerator.id} {bench.precision}"
    if known is not None and known.key != key:
        raise InputError(f"the profile {name} is for {known.key}, these runs are of {key}; give another --profile")
    offsets = dict(known.offsets) if known is not None else {}
    said = predicted(bench, terms, offsets)
    scores = tuple(
        replace(
            _score(prediction, figure, isl, osl, load, float(value) * 1e3, float(measured) * 1e3),
            concurrency=float(load) * replicas,
        )
        for figure, isl, osl, load, value, measured in zip(
            bench.quantity, bench.isl, bench.osl, bench.concurrency, said, bench.measured, strict=True
        )
    )
    every = [*(known.points if known is not None else ()), *points]
    error = float(np.median([abs(score.error) for score in scores]))
    kept = known or Profile(
        name=name, engine=bench.engine, accelerator=cluster.accelerator.id, precision=bench.precision, offsets={},
        before=error, after=error,
    )  # fmt: skip
    loads = {(point.isl, point.osl, point.concurrency) for point in every}
    if len(loads) >= FEWEST_POINTS:
        whole = bench_of(every, model=model, cluster=cluster, plan=prediction.plan)
        found = serving_profile.calibrate(whole, terms, name=name, points=every)
        if found.better:
            return Settlement(scores=scores, profile=found.profile, fitted=True)
    return Settlement(scores=scores, profile=replace(kept, points=tuple(every)), fitted=False)


def _of_pools(prediction: Prediction, points: Sequence[Point]) -> tuple[Score, ...]:
    """Runs of the load that was predicted, against what was said of it."""
    scores = [
        replace(score, predicted=prediction.figures[score.figure][0])
        for point in points
        for quantity, value in (("tpot", point.tpot_ms), ("ttft", point.ttft_ms))
        if value is not None
        for score in (_score(prediction, quantity, point.isl, point.osl, point.concurrency, value, value),)
        if score.low is not None
    ]
    if not scores:
        raise InputError(
            f"no run is of the load predicted for the two pools ({prediction.isl:.0f}/{prediction.osl:.0f} tokens,"
            f" {prediction.concurrency:.0f} at once); run benchmark.sh beside the prediction"
        )
    return tuple(scores)


def _known(name: str) -> Profile | None:
    serving_profile.check_name(name)
    return serving_profile.load(name) if (serving_profile.folder() / f"{name}.json").is_file() else None


def _score(
    prediction: Prediction, quantity: str, isl: float, osl: float, load: float, value: float, measured: float
) -> Score:
    figure = f"{quantity}_ms"
    pairs = ((isl, prediction.isl), (osl, prediction.osl), (load, prediction.concurrency))
    same = all(abs(one / other - 1.0) <= _NEAR for one, other in pairs)
    bounds = prediction.figures.get(figure) if same else None
    low, high = (bounds[1], bounds[2]) if bounds is not None else (None, None)
    return Score(
        figure=figure, isl=float(isl), osl=float(osl), concurrency=float(load), predicted=value, measured=measured,
        low=low, high=high,
    )  # fmt: skip
