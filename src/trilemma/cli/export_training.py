"""The part of ``trilemma export`` that writes training plans."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from trilemma.ask.plan_documents import object_in
from trilemma.errors import InputError, shorten

_MOST_DOMAIN = 2**16


def files(estimate: Mapping[str, Any], *, to: str, path: str) -> dict[str, str]:
    """File name → content of the training plan in ``estimate`` for framework ``to``. Raises `InputError`."""
    from trilemma.engines.training_files import training_files
    from trilemma.hardware.catalogue import find
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.resolve import load_model
    from trilemma.plans.training_document import training_plan_from_document, training_workload_from_document

    inputs = object_in(estimate.get("inputs"), "inputs", path)
    plan = training_plan_from_document(object_in(inputs.get("plan"), "inputs.plan", path))
    workload = training_workload_from_document(object_in(inputs.get("workload"), "inputs.workload", path))
    if plan.layout.is_table:
        raise InputError("inputs.plan holds a table of plans; export takes one plan")
    cluster = object_in(inputs.get("cluster"), "inputs.cluster", path)
    card = object_in(cluster.get("accelerator"), "inputs.cluster.accelerator", path).get("id")
    per_node = cluster.get("gpus_per_node")
    if (
        not isinstance(card, str)
        or isinstance(per_node, bool)
        or not isinstance(per_node, int)
        or not 1 <= per_node <= 2**16
    ):
        raise InputError(
            f"{shorten(path)}: inputs.cluster names no accelerator or GPUs of a node; give what plan printed"
        )
    name = object_in(inputs.get("model"), "inputs.model", path).get("name")
    if not isinstance(name, str):
        raise InputError(f"{shorten(path)}: inputs.model.name is not a model's name")
    gpus = int(plan.layout.gpus)
    shaped = Cluster(accelerator=find(card), gpus=gpus, gpus_per_node=min(per_node, gpus))
    found = training_files(
        to=to, model=load_model(name), plan=plan, workload=workload, gpus_per_node=per_node,
        domain=min(shaped.usual_domain, _MOST_DOMAIN),
    )  # fmt: skip
    if to != plan.implementation:
        print(
            f"trilemma: the plan was priced for {plan.implementation}; {to} may keep other state and run at another speed:"
            " check the files with trilemma check",
            file=sys.stderr,
        )
    return found
