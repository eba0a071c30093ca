"""The lines of a start-up as a ledger, and the error bars of the lines and of the cache pool."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.engines.rank_memory import half_widths
from trilemma.engines.table import Plans
from trilemma.engines.vllm.defaults import InForce
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.engines.vllm.stage import Stage
from trilemma.memory.ledger import Ledger, Line
from trilemma.models.architecture import Model


def widths_of(stage: Stage, facts: VllmFacts, model: Model) -> dict[str, Any]:
    """Half-widths (90 %) of every line, in bytes. Logits are a part of one measured peak, whose width stands at the rest of it;
    sparse attention is the least known part of that."""
    memory, spread = facts.coefficients, facts.coefficients["spread"]
    sparse = any(mixer.is_compressed or (mixer.is_latent and mixer.is_sparse) for mixer in model.mixers)
    if sparse:
        memory = {**memory, "spread": {**spread, "activations_gib": spread["sparse_gib"]}}
    lines = {name: value for name, value in stage.lines.items() if name != "logits"}
    lines["activations"] = stage.lines["activations"] + stage.lines["logits"]
    found = half_widths(model, lines, memory, known=facts.known)
    return {**found, "logits": spread["logits_relative"] * stage.lines["logits"]}


def pool_spread(stage: Stage, facts: VllmFacts, model: Model, *, total_bytes: float, shared_bytes: float) -> Any:
    """Half-width (90 %) of the bytes left for the cache: the lines' own, taken as independent, and the card's total.

    ``total_bytes`` is the half-width of the budget where the card's total is inferred; ``shared_bytes`` the total of a
    card that shares memory with its host (0: none), of which the system takes what it likes.
    """
    widths = widths_of(stage, facts, model)
    names = [name for name in widths if name not in ("context", "logits")]
    inside = np.where(stage.lines["graphs_inside"], 1.0, 0.0)
    shared = facts.coefficients["spread"]["unified_memory_relative"] * shared_bytes
    parts = [widths[name] * (inside if name == "cuda_graphs" else 1.0) for name in names]
    return np.sqrt(sum(np.square(part) for part in parts) + total_bytes**2 + shared**2)


_FORMULAS = {
    "weights": "sum over tensors of bytes · ceil(units / tp) / units, layers of the stage",
    "draft_model": "multi-token-prediction layers, last stage",
    "vision": "tensors of the vision tower, first stage",
    "activations": "fixed + experts + max(sampler, forward + encoder) − logits",
    "logits": "sequences · vocabulary · bytes per logit in the sampler's profiling run",
    "workspace": "non-torch allocations of one rank",
    "communication": "all-reduce buffers of several ranks",
    "cuda_graphs": "fixed + graphs · layers · c + buffers of the largest batch",
    "context": "CUDA context of the worker",
    "kv_cache": "fraction · total − lines inside the budget",
}
_TABLES = {
    "activations": "forward", "logits": "sampler", "workspace": "non_torch_gib",
    "communication": "non_torch_gib", "cuda_graphs": "graphs", "context": "context_gib",
}  # fmt: skip


def ledger(
    stage: Stage, pool: Any, pool_half: Any, facts: VllmFacts, model: Model, plans: Plans, force: InForce
) -> Ledger:
    """Every line with its bounds; ``pool`` bytes are left for the cache, give or take ``pool_half``."""
    widths = widths_of(stage, facts, model)
    inputs = {
        "tp": plans.out(plans.tp), "pp": plans.out(plans.pp), "dp": plans.out(plans.dp), "ep": plans.out(plans.ep),
        "max_seqs": plans.out(plans.seqs), "max_batched_tokens": plans.out(plans.tokens), "version": facts.version,
    }  # fmt: skip
    lines = []
    for name in _FORMULAS:
        value = pool if name == "kv_cache" else stage.lines[name]
        if name in ("draft_model", "vision", "communication", "cuda_graphs") and not np.any(value):
            continue
        half = pool_half if name == "kv_cache" else widths[name]
        inside = bool(np.all(stage.lines["graphs_inside"])) if name == "cuda_graphs" else name != "context"
        source = str(facts.coefficients[_TABLES[name]]["source"]) if name in _TABLES else ""
        lines.append(
            Line(
                name=name, bytes=plans.out(value), low=plans.out(np.maximum(value - half, 0)),
                high=plans.out(value + half), budget="inside" if inside else "outside", formula=_FORMULAS[name],
                inputs=inputs | ({"kv": force.kv.name, "context": force.context} if name == "kv_cache" else {}),
                source=source,
            )
        )  # fmt: skip
    return Ledger(lines=tuple(lines))
