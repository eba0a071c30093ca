"""Documents of plans as ``trilemma export`` takes them: read within bounds, refused in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten

_MOST_BYTES = 64 * 2**20
_ESTIMATE, _PLANS = "trilemma/estimate@1", "trilemma/plans@1"


def read_document(path: str) -> Mapping[str, Any]:
    from trilemma.outside_files import read_text

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        document = json.loads(read_text(Path(path), most_bytes=_MOST_BYTES), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{shorten(path)} is not a JSON document; give what fit or plan printed with --json"
        ) from error
    if not isinstance(document, Mapping) or document.get("schema") not in (_ESTIMATE, _PLANS):
        raise InputError(
            f"{shorten(path)} is neither {_ESTIMATE} nor {_PLANS}; give what fit or plan printed with --json"
        )
    return document


def chosen(document: Mapping[str, Any], number: int, path: str) -> Mapping[str, Any]:
    plans = document.get("plans") if document["schema"] == _PLANS else [document]
    if not isinstance(plans, list) or not plans:
        raise InputError(f"{shorten(path)} holds no plans")
    if not 1 <= number <= len(plans):
        raise InputError(f"--plan {number} is out of range; {shorten(path)} holds plans 1 to {len(plans)}")
    chosen = plans[number - 1]
    if not isinstance(chosen, Mapping):
        raise InputError(f"{shorten(path)}: plan {number} is not an estimate")
    return chosen


def object_in(value: Any, key: str, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{shorten(path)}: {key} is not an object; give what fit or plan printed with --json")
    return value


def is_plan(keys: Any) -> bool:
    """Whether the keys at the top of a JSON file are those of an estimate, or of a search."""
    return "schema" in keys and ("plans" in keys or {"inputs", "verdict"} <= set(keys))


def answer_of(document: Mapping[str, Any], path: str) -> Any:
    """The plan of a document judged anew, as `fit` judges it. Raises `InputError`, also where its model is of no catalogue."""
    import trilemma

    inputs = object_in(chosen(document, 1, path).get("inputs"), "inputs", path)
    cluster = object_in(inputs.get("cluster"), "inputs.cluster", path)
    card = object_in(cluster.get("accelerator"), "inputs.cluster.accelerator", path).get("id")
    model = object_in(inputs.get("model"), "inputs.model", path).get("name")
    gpus, nodes = cluster.get("gpus"), cluster.get("nodes", 1)
    if not isinstance(card, str) or not isinstance(model, str) or not _is_count(gpus) or not _is_count(nodes):
        raise InputError(f"{shorten(path)}: inputs name no model or no cards; give what fit, check or plan printed")
    plan, load = _plan_and_load(inputs, path)
    gpu = f"{card}:{gpus}"
    try:
        return trilemma.fit(model, gpu, plan=plan, workload=load, nodes=nodes)
    except InputError as error:
        if "unknown model" not in str(error):
            raise
        raise InputError(
            f"{shorten(path)} is of {shorten(model)}, which a command described; give that command behind --, and `gpu`"
        ) from error


def _plan_and_load(inputs: Mapping[str, Any], path: str) -> tuple[Any, Any]:
    from dataclasses import fields

    from trilemma.plans.document import plan_from_document
    from trilemma.plans.training_document import training_plan_from_document, training_workload_from_document
    from trilemma.workloads import Serving

    plan = object_in(inputs.get("plan"), "inputs.plan", path)
    load = object_in(inputs.get("workload"), "inputs.workload", path)
    if "pools" not in plan:
        return training_plan_from_document(plan), training_workload_from_document(load)
    known = {one.name for one in fields(Serving)}
    figures = {key: value for key, value in load.items() if key in known and _is_number(value)}
    return plan_from_document({key: value for key, value in plan.items() if key in ("engine", "pools")}), Serving(
        **figures
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**20


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
