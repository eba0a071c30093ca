"""Measured points of one deployment as a bench, so that timing answers them all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trilemma import engines
from trilemma.calibrate.bench_files import Point
from trilemma.calibrate.serving_fit import Bench
from trilemma.estimate.speed import slots
from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import Layout, Plan
from trilemma.timing.forward_pass import Machine
from trilemma.timing.operators import model_work
from trilemma.timing.serving_terms import precision_of


def bench_of(points: Sequence[Point], *, model: Model, cluster: Cluster, plan: Plan) -> Bench:
    """Every figure of ``points``: time per output token and time to first token, in seconds."""
    start = engines.get(plan.engine.name).start_up(
        model=model,
        accelerator=cluster.accelerator,
        layout=plan.pool.layout,
        options=plan.pool.options,
        draft=plan.pool.draft,
        version=plan.engine.version,
    )
    work = model_work(model, cluster.accelerator)
    rows = [
        (point, quantity, value / 1e3)
        for point in points
        for quantity, value in (("tpot", point.tpot_ms), ("ttft", point.ttft_ms))
        if value is not None
    ]
    layout = plan.pool.layout
    degrees = {name: np.full(len(rows), int(getattr(layout, name))) for name in ("tp", "pp", "dp", "ep")}
    held = [max(float(slots(start, length=int(point.isl + point.osl))), 1.0) for point, _, _ in rows]
    return Bench(
        work=work,
        machine=Machine.of(cluster),
        engine=engines.canonical(plan.engine.name),
        precision=precision_of(work),
        kv_format=catalogue.get(start.kv_format),
        layout=Layout(**degrees),
        isl=np.array([point.isl for point, _, _ in rows]),
        osl=np.array([point.osl for point, _, _ in rows]),
        concurrency=np.array([point.concurrency for point, _, _ in rows]),
        slots=np.array(held),
        queued=np.zeros(len(rows), dtype=bool),
        quantity=np.array([quantity for _, quantity, _ in rows]),
        measured=np.array([value for _, _, value in rows]),
        at=np.arange(len(rows)),
        trust=np.ones(len(rows)),
    )
