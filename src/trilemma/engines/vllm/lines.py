"""The error bars of vLLM's lines and of its cache pool, and each line's rule in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trilemma.engines.rank_memory import half_widths
from trilemma.engines.start_up import Formula, root_of_squares
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.engines.vllm.stage import VllmStage
from trilemma.models.architecture import Model


def widths_of(stage: VllmStage, facts: VllmFacts, model: Model) -> dict[str, Any]:
    """Half-widths (90 %) of every line, in bytes. Logits are a part of one measured peak, whose width stands at the rest of it;
    sparse attention is the least known part of that, and what the second runner takes, which graphs tell that it charges none."""
    memory, spread = facts.coefficients, facts.coefficients["spread"]
    sparse = any(mixer.is_compressed or (mixer.is_latent and mixer.is_sparse) for mixer in model.mixers)
    second = facts.graphs_in_budget and not np.all(stage.graphs_inside)
    known = {"activations_relative": max(spread["activations_relative"], memory["sampler"]["relative"])}
    if sparse or second:
        known["activations_gib"] = spread["sparse_gib" if sparse else "second_runner_gib"]
    memory = {**memory, "spread": {**spread, **known}}
    lines = {name: value for name, value in stage.lines.items() if name != "logits"}
    lines["activations"] = stage.lines["activations"] + stage.lines["logits"]
    found = half_widths(model, lines, memory, known=facts.known)
    return {**found, "adapter": stage.adapter_half, "logits": spread["logits_relative"] * stage.lines["logits"]}


def pool_spread(
    stage: VllmStage, half: Mapping[str, Any], facts: VllmFacts, *, total_bytes: float, shared_bytes: float
) -> Any:
    """Half-width (90 %) of the bytes left for the cache: the lines' own (``half``), taken as independent, and the card's total.

    ``total_bytes`` is the half-width of the budget where the card's total is inferred; ``shared_bytes`` the total of a
    card that shares memory with its host (0: none), of which the system takes what it likes.
    """
    names = [name for name in half if name not in ("context", "logits")]
    inside = np.where(stage.graphs_inside, 1.0, 0.0)
    shared = facts.coefficients["spread"]["unified_memory_relative"] * shared_bytes
    parts = [half[name] * (inside if name == "cuda_graphs" else 1.0) for name in names]
    return root_of_squares(*parts, total_bytes, shared)


FORMULAS = {
    "weights": Formula(words="sum over tensors of bytes · ceil(units / tp) / units, layers of the stage"),
    "adapter": Formula(
        words="slots · rank · (in + out) · bytes of every linear layer; half of what the vocabulary would take",
        source="vllm/lora/layers/base_linear.py, create_lora_weights",
    ),
    "state_cache": Formula(
        words="sequences · states of every recurrent layer, kept from the profiling run on",
        source="vllm/model_executor/models/mamba_cache.py, MambaCacheManager (V0)",
    ),
    "draft_model": Formula(words="multi-token-prediction layers, last stage"),
    "vision": Formula(words="tensors of the vision tower, first stage"),
    "activations": Formula(words="fixed + experts + max(sampler, forward + encoder) − logits", table="forward"),
    "logits": Formula(words="sequences · vocabulary · bytes per logit in the sampler's profiling run", table="sampler"),
    "workspace": Formula(words="non-torch allocations of one rank", table="non_torch_gib"),
    "communication": Formula(words="all-reduce buffers of several ranks", table="non_torch_gib"),
    "cuda_graphs": Formula(words="fixed + graphs · layers · c + buffers of the largest batch", table="graphs"),
    "context": Formula(words="CUDA context of the worker", table="context_gib"),
    "kv_cache": Formula(words="fraction · total − lines inside the budget"),
}
