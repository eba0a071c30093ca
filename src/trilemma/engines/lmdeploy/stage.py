"""What a rank of LMDeploy needs of its card, cache apart, and what a token of its cache takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.layer_cache import layer_caches
from trilemma.engines.lmdeploy.facts import LmdeployFacts
from trilemma.engines.rank_memory import (
    Weights,
    Widths,
    context_bytes,
    expert_bytes,
    fabric_of,
    forward_bytes,
    graph_bytes,
    rungs,
)
from trilemma.engines.stages import LayerSpan, PipelineStage
from trilemma.engines.start_up import SettledStart
from trilemma.formats.formats import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class LmdeploySettled(SettledStart):
    """``turbomind``: which of the two backends runs; ``beyond``: layouts that it does not run."""

    facts: LmdeployFacts
    dtype: Format
    block: int
    turbomind: bool
    beyond: Any

    @property
    def ranks(self) -> Any:
        return self.plans.tp * self.plans.dp


@dataclass(frozen=True, kw_only=True, slots=True)
class LmdeployStage(PipelineStage):
    """``rate``: bytes a token, ``state``: bytes of one request's states; arrays (plans,)."""

    rate: Any
    state: Any


def stages(settled: LmdeploySettled) -> list[LmdeployStage]:
    """The one stage: LMDeploy cuts a model by tensors and experts, never by layers."""
    model, plans = settled.model, settled.plans
    weights = Weights(model, vocab_padding=1)
    caches = layer_caches(model.layers, tp=plans.tp, kv_format=settled.kv)
    span = LayerSpan.of(plans.stages[0], model, plans)
    rate = np.maximum(span.sum_of([cache.full + cache.window for cache in caches]), 1e-9)
    state = span.sum_of([cache.state for cache in caches])
    return [LmdeployStage(lines=_lines(settled, span, weights, state), rate=rate, state=state)]


def _lines(settled: LmdeploySettled, span: LayerSpan, weights: Weights, state: Any) -> dict[str, Any]:
    """The lines of a rank, cache apart. TurboMind captures no graphs; the PyTorch backend sets memory aside and captures them
    once the cache is there."""
    plans, options, facts, ranks = settled.plans, settled.options, settled.facts, settled.ranks
    memory, widths, none = facts.coefficients, Widths.of(settled.model), np.zeros(settled.plans.shape)
    row = np.asarray(plans.tokens) * (settled.dtype.bits / 8)
    peak = forward_bytes(widths, memory, row=row, tp=ranks) + expert_bytes(
        widths, memory, row=row, tp=ranks, ep=plans.ep
    )
    captured = np.zeros(plans.shape) if settled.turbomind or options.eager else plans.seqs + none
    graphs = graph_bytes(
        widths,
        memory,
        layers=span.layers,
        graphs=rungs(memory["graphs"]["ladder"], captured),
        largest=captured,
        tp=ranks,
    )
    each, beside = facts.set_aside
    aside = (
        none if settled.turbomind else (plans.tokens + beside * plans.seqs) * float(settled.model.vocab) * each + none
    )
    loaded = span.loaded(
        weights, attention_tp=plans.tp, tp=ranks, ep=plans.ep, drafts=False, text_only=options.text_only
    )
    return {
        "weights": loaded["weights"],
        "vision": loaded["vision"],
        "context": context_bytes(memory, ranks=ranks, fabric=fabric_of(settled.asked.accelerator, memory)) + none,
        "workspace": aside,
        "state_cache": (plans.seqs + np.where(state > 0, 2, 0)) * state + none,
        "activations": peak + none,
        "logits": plans.seqs * float(settled.model.vocab) * memory["logits"]["bytes"] / plans.tp + none,
        "cuda_graphs": graphs + none,
    }
