"""The load that an exported plan was judged for: of ``prediction.json`` beside the script or manifest that is checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trilemma.errors import Caution, InputError
from trilemma.workloads import Serving

if TYPE_CHECKING:
    from trilemma.plans import Plan

_SUFFIXES = (".sh", ".yaml", ".yml")
_CODE = "load-of-prediction"


def expected_load(words: Sequence[str], plan: Plan) -> tuple[Serving, tuple[Caution, ...]]:
    """The load to check ``plan`` for, and what to say of it; an empty load where no prediction lies beside the file named.

    ``words`` are what the reader pasted, ``plan`` what they start. Engines that share a load get their part of it.
    """
    from trilemma.calibrate.prediction import FILE, read_prediction
    from trilemma.engines import canonical
    from trilemma.estimate.serving import one_of

    path = next((Path(word).parent / FILE for word in words if word.endswith(_SUFFIXES) and _is_file(word)), None)
    if path is None or not _is_file(str(path)):
        return Serving(), ()
    try:
        found = read_prediction(path)
    except InputError:
        return Serving(), _said(f"{FILE} beside it is no prediction of export and was left out")
    if canonical(found.plan.engine.name) != canonical(plan.engine.name):
        return Serving(), _said(f"{FILE} beside it is of {found.plan.engine.name} and was left out")
    if len(found.plan.pools) > 1:
        return Serving(), _said(
            f"the load of {FILE} is one of several pools together; this engine is checked without it"
        )
    if plan.pool.options.context is None:
        return Serving(), _said(f"the command states no context, so the load of {FILE} beside it was left out")
    load = Serving(isl=int(found.isl), osl=int(found.osl), concurrency=int(found.concurrency))
    replicas = found.plan.pool.replicas
    share = f" shared by {replicas} engines" if replicas > 1 else ""
    said = f"judged for the load of {FILE} beside it: {load.isl}/{load.osl} tokens, {load.concurrency} at once{share}"
    return one_of(load, replicas), _said(said)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _said(message: str) -> tuple[Caution, ...]:
    return (Caution(code=_CODE, message=message),)
