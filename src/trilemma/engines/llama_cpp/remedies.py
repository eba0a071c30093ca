"""What llama.cpp can do for a plan that does not fit: experts or layers on the host, a narrower cache."""

from __future__ import annotations

from dataclasses import replace

from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Plan, ServeOptions

#: Options that a plan gives up when the engine is left to place layers by itself.
_PLACED = ("n-gpu-layers", "fit", "n-cpu-moe", "cpu-moe", "override-tensor", "tensor-split")


def changes(plan: Plan, model: Model) -> list[tuple[str, ServeOptions, float, str]]:
    """(what is changed, the options that result, cost, quality of answers), cheapest first.

    Experts on the host cost less speed than layers there, since few of them work on a token.
    """
    options = plan.pool.options
    found: list[tuple[str, ServeOptions, float, str]] = []
    if (options.kv_dtype or "f16") in ("f16", "bf16", "f32"):
        extra = {name: value for name, value in options.extra.items() if name != "cache-type-v"}
        narrow = replace(options, kv_dtype="q8_0", extra={**extra, "flash-attn": "on"})
        found.append(("K and V cached in Q8_0", narrow, 4.5, "nearly unchanged: 8.5 bits an element"))
    mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    if mixture and not options.extra.get("cpu-moe"):
        on_host = {name: value for name, value in options.extra.items() if name not in ("n-cpu-moe", "override-tensor")}
        kept = replace(options, extra={**on_host, "cpu-moe": True})
        found.append(("all experts in the memory of the host (slower)", kept, 4.6, "unchanged"))
    if any(name in options.extra for name in ("n-gpu-layers", "fit")):
        left = {name: value for name, value in options.extra.items() if name not in _PLACED}
        found.append(
            (
                "layers placed by the engine itself, some on the host (slower)",
                replace(options, extra=left),
                4.8,
                "unchanged",
            )
        )
    return found
