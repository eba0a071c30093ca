"""Where nothing fits: the plainest plan, why it fails, and what would make it fit."""

from __future__ import annotations

from dataclasses import replace

from trilemma.engines import canonical
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import EngineRef, Layout, Plan, Pool
from trilemma.quantities import counted
from trilemma.question import Question
from trilemma.search.answer import with_remedies
from trilemma.search.space import Constraints, layouts
from trilemma.timing.serving_terms import ServingTerms
from trilemma.workloads import Serving


def nearest_miss(
    model: Model,
    cluster: Cluster,
    workload: Serving,
    *,
    fixed: Constraints,
    engine: EngineRef,
    terms: ServingTerms | None = None,
) -> Estimate:
    """The estimate, remedies filled in, of the checkpoint as published in the layout that splits it furthest.

    Without remedies where that plan does start: then it is the load that no plan carries. Raises `InputError` where no
    layout of the GPUs is legal.
    """
    space = layouts(
        model, gpus=cluster.gpus, fixed=fixed, gpus_per_node=cluster.gpus_per_node, engine=canonical(engine.name)
    )
    if not space.legal:
        why = "; ".join(space.rejected) or "no layout is legal"
        raise InputError(
            f"{model.name} cannot be laid out on {counted(cluster.gpus, 'GPU')}: {why}; give another number of GPUs"
        )
    table = space.layout
    at = max(range(space.legal), key=lambda row: (int(table.tp[row]), int(table.pp[row])))  # type: ignore[index]
    layout = Layout(tp=int(table.tp[at]), pp=int(table.pp[at]), dp=int(table.dp[at]), ep=int(table.ep[at]))  # type: ignore[index]
    options = replace(fixed.options, context=workload.longest_request)
    plan = Plan(engine=engine, pools=(Pool(layout=layout, options=options, replicas=int(space.replicas[at])),))

    return with_remedies(estimate(Question(model=model, cluster=cluster, workload=workload, plan=plan, terms=terms)))
