"""What an exported plan was judged for, load and weights: of ``prediction.json`` beside the script or manifest that is
checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trilemma.errors import InputError, PlanWarning
from trilemma.workloads import Serving

if TYPE_CHECKING:
    from trilemma.engines.base import EngineCommand
    from trilemma.measured.serving.deployment.prediction import Prediction
    from trilemma.models.architecture import Model
    from trilemma.plans import Plan

_SUFFIXES = (".sh", ".yaml", ".yml")
_CODE = "load-of-prediction"


def prediction_beside(words: Sequence[str]) -> Prediction | str | None:
    """The prediction beside the file that ``words`` name; what is wrong with it, or None where none lies there."""
    from trilemma.measured.serving.deployment.prediction import FILE, read_prediction

    path = next((Path(word).parent / FILE for word in words if word.endswith(_SUFFIXES) and _is_file(word)), None)
    if path is None or not _is_file(str(path)):
        return None
    try:
        return read_prediction(path)
    except InputError:
        return f"{FILE} beside it is no prediction of export and was left out"


def exported_weights(
    found: Prediction | str | None, command: EngineCommand, models_dir: str | None
) -> tuple[Model, tuple[PlanWarning, ...]] | None:
    """The model of a command whose checkpoint has still to be made, as the plan stores it; None where the command says it.

    The prediction names the published model and the scheme. A checkpoint that is here is read instead.
    """
    if found is None or isinstance(found, str) or found.precision is None or found.served_as is None:
        return None
    name = command.model
    if PurePosixPath(name).name != PurePosixPath(found.served_as).name or _exists(name):
        return None
    model = found.weights(models_dir)
    message = (
        f"{name} is not on this machine; taken as {model.name} in {found.precision}, as the prediction beside it says"
    )
    return model, (PlanWarning(code="model-elsewhere", message=message),)


def expected_load(found: Prediction | str | None, plan: Plan) -> tuple[Serving, tuple[PlanWarning, ...]]:
    """The load to check ``plan`` for, and what to say of it; an empty load where no prediction lies beside the file named.

    Engines that share a load get their part of it.
    """
    from trilemma.engines import canonical
    from trilemma.measured.serving.deployment.prediction import FILE

    if found is None:
        return Serving(), ()
    if isinstance(found, str):
        return Serving(), _said(found)
    if canonical(found.plan.engine.name) != canonical(plan.engine.name):
        return Serving(), _said(f"{FILE} beside it is of {found.plan.engine.name} and was left out")
    if len(found.plan.pools) > 1:
        return Serving(), _said(
            f"the load of {FILE} is one of several pools together; this engine is checked without it"
        )
    if plan.pool.options.context is None:
        return Serving(), _said(f"the command states no context, so the load of {FILE} beside it was left out")
    at_once = int(found.concurrency) if found.rate is None else None
    load = Serving(isl=int(found.isl), osl=int(found.osl), concurrency=at_once, rate=found.rate)
    replicas = found.plan.pool.replicas
    share = f" shared by {replicas} engines" if replicas > 1 else ""
    busy = f"{found.rate:g} requests a second" if found.rate is not None else f"{at_once} at once"
    said = f"judged for the load of {FILE} beside it: {load.isl}/{load.osl} tokens, {busy}{share}"
    return _part_of(load, replicas), _said(said)


def _part_of(load: Serving, replicas: int) -> Serving:
    """What the busiest of ``replicas`` engines that share ``load`` evenly has to do."""
    return replace(
        load,
        concurrency=None if load.concurrency is None else -(-load.concurrency // replicas),
        rate=None if load.rate is None else load.rate / replicas,
    )


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _said(message: str) -> tuple[PlanWarning, ...]:
    return (PlanWarning(code=_CODE, message=message),)
