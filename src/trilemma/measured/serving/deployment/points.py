"""Measured points of one deployment as a bench, so that timing answers them all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trilemma import engines
from trilemma.errors import InputError
from trilemma.estimate.serving_load import admission_of
from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.measured.serving.deployment.bench_files import Point
from trilemma.measured.serving.speed.figures import SpeedFigures
from trilemma.models.architecture import Model
from trilemma.plans import Layout, Plan
from trilemma.timing.admission import Admission
from trilemma.timing.forward_pass import decode_step
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork, model_work
from trilemma.timing.serving_terms import precision_of

#: A card reaches no more than its datasheet; what is below by more than this is another unit, model or card.
_SLACK = 0.9
#: Weight of a time to first token over what tables of many sources would give it: one benchmark on one deployment starts its
#: clock in one way. With 2 the error on loads left out falls from 12 to 10 %, that of the time per token stays
#: (studies/serving_profile_bars.py).
TTFT_TRUST = 2.0


def bench_of(points: Sequence[Point], *, model: Model, cluster: Cluster, plan: Plan) -> SpeedFigures:
    """Every figure of ``points``: time per output token and time to first token, in seconds.

    Raises `InputError` for a figure that the cards cannot reach at their datasheet's best.
    """
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
    _check_possible(points, work=work, plan=plan, cluster=cluster, kv_format=start.kv_format)
    degrees = {name: np.full(len(rows), int(getattr(layout, name))) for name in ("tp", "pp", "dp", "ep")}
    name = plan.engine.name
    admitted = [admission_of(start, name, isl=int(point.isl), osl=int(point.osl)) for point, _, _ in rows]
    return SpeedFigures(
        work=work,
        machine=Machine.of(cluster, engines.canonical(name)),
        engine=engines.canonical(plan.engine.name),
        precision=precision_of(work),
        kv_format=catalogue.get(start.kv_format),
        layout=Layout(**degrees),
        isl=np.array([point.isl for point, _, _ in rows]),
        osl=np.array([point.osl for point, _, _ in rows]),
        concurrency=np.array([point.concurrency for point, _, _ in rows]),
        rate=np.full(len(rows), np.nan),
        admission=Admission.joined(admitted),
        queued=np.zeros(len(rows), dtype=bool),
        quantity=np.array([quantity for _, quantity, _ in rows]),
        measured=np.array([value for _, _, value in rows]),
        at=np.arange(len(rows)),
        trust=np.array([TTFT_TRUST if quantity == "ttft" else 1.0 for _, quantity, _ in rows]),
    )


def _check_possible(points: Sequence[Point], *, work: ModelWork, plan: Plan, cluster: Cluster, kv_format: str) -> None:
    """No token, the first included, comes before the weights were read once at the datasheet's bandwidth.

    That is what one sequence alone would take; drafts that are all accepted share it.
    """
    contexts = np.array([point.isl for point in points], dtype=float)
    alone = decode_step(
        work, Machine.of(cluster).at_datasheet(), plan.pool.layout, batch=1, context=contexts,
        kv_format=catalogue.get(kv_format),
    )  # fmt: skip
    drafted = plan.pool.draft.tokens if plan.pool.draft is not None else 0
    least = np.broadcast_to(np.asarray(alone.total_s, dtype=float), contexts.shape) * 1e3
    for row, (point, roof) in enumerate(zip(points, least, strict=True), 1):
        for name, value, floor in (("tpot", point.tpot_ms, roof / (1 + drafted)), ("ttft", point.ttft_ms, roof)):
            if value is not None and value < _SLACK * floor:
                raise InputError(
                    f"point {row} of {len(points)} ({point.isl:.0f}/{point.osl:.0f} tokens, {point.concurrency:.0f} at once):"
                    f" {name}_ms {value:g} cannot be, reading the weights alone takes {floor:.3g} ms; give milliseconds, and"
                    " the --model and --gpu that were measured"
                )
