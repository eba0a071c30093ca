"""Measured points of a deployment as anchors of what is said of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trilemma.hardware.cluster import Cluster
from trilemma.measured.serving.deployment.bench_files import Point
from trilemma.measured.serving.deployment.points import bench_of
from trilemma.measured.serving.deployment.profile import predicted
from trilemma.models.architecture import Model
from trilemma.plans import Plan
from trilemma.timing.anchoring import AnchorLoad, Anchors
from trilemma.timing.eras import era_of
from trilemma.timing.serving_terms import ServingTerms, served_as


def anchored_terms(
    points: Sequence[Point], *, model: Model, cluster: Cluster, plan: Plan, terms: ServingTerms
) -> ServingTerms:
    """``terms`` with ``points`` of this very deployment as anchors (see `anchors_of`)."""
    return replace(terms, anchors=anchors_of(points, model=model, cluster=cluster, plan=plan, terms=terms))


def anchors_of(points: Sequence[Point], *, model: Model, cluster: Cluster, plan: Plan, terms: ServingTerms) -> Anchors:
    """How far ``terms`` were off at ``points`` of this very deployment. Engines side by side share the requests in flight.

    Raises `InputError` for figures that the cards cannot reach.
    """
    replicas = plan.pool.replicas
    shared = [replace(point, concurrency=max(point.concurrency / replicas, 1.0)) for point in points]
    bench = bench_of(shared, model=model, cluster=cluster, plan=plan)
    era = None
    if terms.profile is None:  # a profile was made on the release that it speaks for
        era = era_of(bench.engine, plan.engine.version, cluster.accelerator)
    said = predicted(bench, terms, {}, era=era)
    found: dict[str, list[tuple[AnchorLoad, float]]] = {}
    for at, figure in enumerate(bench.quantity.tolist()):
        load = (float(bench.isl[at]), float(bench.osl[at]), float(bench.concurrency[at]))
        found.setdefault(figure, []).append((load, math.log(float(bench.measured[at]) / float(said[at]))))
    key = f"{bench.engine} {cluster.accelerator.id} {bench.precision}"
    return Anchors(
        key=key,
        served=served_as(bench.work, plan.pool.layout),
        points={name: tuple(told) for name, told in found.items()},
    )
