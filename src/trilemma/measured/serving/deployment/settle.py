"""Settling a prediction: measured against said, and what the runs add to the profile of the deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.measured.serving.deployment import profile as serving_profile
from trilemma.measured.serving.deployment.bench_files import Point
from trilemma.measured.serving.deployment.points import bench_of
from trilemma.measured.serving.deployment.prediction import Prediction
from trilemma.measured.serving.deployment.profile import FEWEST_POINTS, Profile, predicted
from trilemma.timing.eras import era_of
from trilemma.timing.serving_terms import ServingTerms

#: A run counts as the predicted load where lengths and requests in flight, or the rate asked for, are this near to it.
_NEAR = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One figure of one run. ``low`` and ``high`` bound the prediction where the run is of the very load predicted;
    ``unjudged`` says why it has no bounds otherwise."""

    figure: str
    isl: float
    osl: float
    concurrency: float
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None
    unjudged: str | None = None

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
    shared = [replace(point, concurrency=max(point.concurrency / replicas, 1.0)) for point in points]
    cluster = Cluster(
        accelerator=find(prediction.accelerator), gpus=prediction.gpus, gpus_per_node=prediction.gpus_per_node
    )
    model = prediction.weights(models_dir)
    bench = bench_of(shared, model=model, cluster=cluster, plan=prediction.plan)
    known = _known(name)
    key = f"{bench.engine} {cluster.accelerator.id} {bench.precision}"
    if known is not None and known.key != key:
        raise InputError(f"the profile {name} is for {known.key}, these runs are of {key}; give another --profile")
    offsets = dict(known.offsets) if known is not None else {}
    version = prediction.plan.engine.version
    # a profile was made on the release that it speaks for
    era = None if known is not None else era_of(bench.engine, version, cluster.accelerator)
    said = predicted(bench, terms, offsets, era=era)
    scores = tuple(
        _stated(prediction, point, _score(prediction, point, quantity, float(value) * 1e3, ran))
        for (point, quantity, ran), value in zip(_rows(points), said, strict=True)
    )
    every = [*(known.points if known is not None else ()), *shared]
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
        for point, quantity, value in _rows(points)
        for score in (_score(prediction, point, quantity, value, value),)
        if score.low is not None
    ]
    if not scores:
        raise InputError(
            f"no run is of the load predicted for the two pools ({load_of(prediction)}); run benchmark.sh beside the prediction"
        )
    return tuple(scores)


def _known(name: str) -> Profile | None:
    serving_profile.check_name(name)
    return serving_profile.load(name) if (serving_profile.folder() / f"{name}.json").is_file() else None


def load_of(prediction: Prediction) -> str:
    """The load predicted, in a few words."""
    asked = (
        f"{prediction.concurrency:.0f} at once" if prediction.rate is None else f"{prediction.rate:g} requests a second"
    )
    return f"{prediction.isl:.0f}/{prediction.osl:.0f} tokens, {asked}"


def _rows(points: Sequence[Point]) -> list[tuple[Point, str, float]]:
    """(run, quantity, milliseconds) of every figure measured, in the order of a bench."""
    return [
        (point, quantity, value)
        for point in points
        for quantity, value in (("tpot", point.tpot_ms), ("ttft", point.ttft_ms))
        if value is not None
    ]


def _score(prediction: Prediction, point: Point, quantity: str, value: float, measured: float) -> Score:
    figure = f"{quantity}_ms"
    other = _other_load(prediction, point)
    bounds = prediction.figures.get(figure)
    why = other or (f"the prediction states no {figure}" if bounds is None else None)
    return Score(
        figure=figure, isl=point.isl, osl=point.osl, concurrency=point.concurrency, predicted=value, measured=measured,
        low=bounds[1] if bounds is not None and why is None else None,
        high=bounds[2] if bounds is not None and why is None else None,
        unjudged=why,
    )  # fmt: skip


def _stated(prediction: Prediction, point: Point, score: Score) -> Score:
    """Requests that arrive at the predicted rate are held against what was said of it: how many are in flight is a result."""
    at_rate = prediction.rate is not None and point.rate is not None and score.unjudged is None
    return replace(score, predicted=prediction.figures[score.figure][0]) if at_rate else score


def _other_load(prediction: Prediction, point: Point) -> str | None:
    """What makes a run one of another load than predicted; None where it is of that load."""
    pairs = [("prompts", point.isl, prediction.isl, "tokens"), ("outputs", point.osl, prediction.osl, "tokens")]
    if prediction.rate is not None and point.rate is not None:
        pairs.append(("arrivals", point.rate, prediction.rate, "a second"))
    else:
        pairs.append(("requests", point.concurrency, prediction.concurrency, "at once"))
    for what, found, said, unit in pairs:
        if abs(found / said - 1.0) > _NEAR:
            return f"another load: {what} of {found:.4g} {unit}, predicted for {said:.4g}"
    return None
