"""Which pools an engine can join: what its documents and code say of handing a cache from prefill to decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.engines.deployment.facts import of_engine
from trilemma.models.architecture import Model
from trilemma.plans import EngineRef, Layout
from trilemma.versions import padded, parse_version


def sides_refused(engine: EngineRef, layout: Layout) -> Mapping[str, NDArray[np.bool_]]:
    """Layouts that are neither a prefill nor a decode engine, by why: stages that the engine does not say it hands over."""
    if _told(engine).get("stages", True):
        return {}
    why = f"pipeline stages in pools: {engine.name} does not state that they hand a cache over"
    return {why: np.asarray(layout.pp) > 1}


def pairs_refused(engine: EngineRef, model: Model, prefill: Layout, decode: Layout) -> Mapping[str, NDArray[np.bool_]]:
    """Pairs of a prefill and a decode layout (arrays that broadcast) that the engine does not join, by why."""
    told, found = _told(engine), {}
    tp, other = np.asarray(prefill.tp), np.asarray(decode.tp)
    if equal_ranks(engine, model):
        why = f"{engine.name} hands states or windows over between equal tensor parallel degrees only"
        found[why] = tp != other
    heads = min((mixer.cache_heads for mixer in model.mixers if mixer.cache_heads is not None), default=None)
    if not told.get("narrows_below_heads", True) and heads is not None:
        why = f"{engine.name}: prefill of more ranks than decode and than the {heads} KV heads"
        found[why] = (tp > other) & (tp > heads)
    if "decode_stages_since" in told:
        stages = np.asarray(decode.pp) > 1
        late = engine.version is None or padded(parse_version(engine.version)) >= padded(
            parse_version(told["decode_stages_since"])
        )
        equal = np.asarray(decode.pp) == np.asarray(prefill.pp)
        found[f"{engine.name} takes caches into other pipeline stages in one stage only"] = stages & ~(equal & late)
    return found


def equal_ranks(engine: EngineRef, model: Model) -> bool:
    """Whether both pools need one tensor parallel degree, for what the layers of ``model`` keep."""
    bounded = {mixer.look_back is not None for mixer in model.mixers if mixer.cache_heads is not None}
    kept = {
        "states": any(mixer.keeps_state for mixer in model.mixers),
        "windows": len(bounded) > 1,
    }
    return any(kept[kind] for kind in _told(engine).get("equal_ranks", ()))


def _told(engine: EngineRef) -> Mapping[str, Any]:
    found: Mapping[str, Any] = of_engine(engine.name).get("disaggregated", {})
    return found
