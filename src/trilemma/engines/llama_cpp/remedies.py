"""What llama.cpp can do for a plan that does not fit: experts or layers on the host, a narrower cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trilemma.engines.llama_cpp.choices import least
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Plan, ServeOptions

#: Options that a plan gives up when its layers are placed anew.
_PLACED = ("n-gpu-layers", "fit", "n-cpu-moe", "cpu-moe", "override-tensor", "tensor-split")
_EXPERTS = ("n-cpu-moe", "cpu-moe", "override-tensor")

#: (what is changed, the options that result, cost, quality of answers)
Offer = tuple[str, ServeOptions, float, str]


def changes(plan: Plan, model: Model, fits: Callable[[ServeOptions], bool]) -> list[Offer]:
    """Changes in order of cost; ``fits`` says whether the plan starts with other options.

    As few experts or layers as will do are left on the host. Experts cost less speed there, since few of them work on a
    token; what stays of a layer on the card is counted.
    """
    options = plan.pool.options
    found = _narrower_cache(options)
    depth = len(model.layers)
    if any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers) and not options.extra.get("cpu-moe"):
        number = least(depth, lambda n: fits(_placed(options, _EXPERTS, {"n-cpu-moe": n})))
        kept = _placed(options, _EXPERTS, {"n-cpu-moe": number})
        found.append((f"experts of {number} of {depth} layers in the memory of the host", kept, 4.6, "unchanged"))
    off = least(depth + 1, lambda n: fits(_placed(options, _PLACED, {"n-gpu-layers": str(depth + 1 - n)})))
    kept = _placed(options, _PLACED, {"n-gpu-layers": str(depth + 1 - off)})
    found.append((f"{off} of {depth + 1} layers in the memory of the host", kept, 4.8, "unchanged"))
    return found


def _narrower_cache(options: ServeOptions) -> list[Offer]:
    if (options.kv_dtype or "f16") not in ("f16", "bf16", "f32"):
        return []
    extra = {name: value for name, value in options.extra.items() if name != "cache-type-v"}
    narrow = replace(options, kv_dtype="q8_0", extra={**extra, "flash-attn": "on"})
    return [("K and V cached in Q8_0", narrow, 4.5, "nearly unchanged: 8.5 bits an element")]


def _placed(options: ServeOptions, dropped: tuple[str, ...], given: dict[str, Any]) -> ServeOptions:
    """``options`` with other places for tensors, and nothing left to ``--fit``."""
    kept = {name: value for name, value in options.extra.items() if name not in dropped}
    return replace(options, extra={**kept, **given})
