"""What one pipeline stage of SGLang needs of its card, cache apart, and what a token of its cache takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.layer_cache import LayerCache, layer_caches
from trilemma.engines.loading import absorbed_copies
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
from trilemma.engines.sglang.defaults import InForce
from trilemma.engines.sglang.facts import SglangFacts
from trilemma.engines.stages import Span, Stage
from trilemma.engines.start_up import (
    Settled,
)
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.models.attention import Mixer
from trilemma.plans import ServeOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangSettled(Settled):
    """``shared``: whether replicas share experts; ``extra`` layers draft; ``stored`` is the model as loaded."""

    facts: SglangFacts
    force: InForce
    stored: Model
    shared: Any
    extra: int
    draft_tokens: int

    @property
    def ranks(self) -> Any:
        return self.plans.tp * np.where(self.shared, self.plans.dp, 1)

    @property
    def fraction(self) -> Any:
        return np.broadcast_to(self.force.fraction, self.plans.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangStage(Stage):
    """``counted`` and ``stored`` are bytes a token, ``state`` a request's states; arrays (plans,)."""

    counted: Any
    stored: Any
    state: Any


def stages(settled: SglangSettled) -> list[SglangStage]:
    """Every pipeline stage by itself."""
    model, facts, force = settled.model, settled.facts, settled.force
    weights = Weights(model, extra=absorbed_copies(model), vocab_padding=facts.vocab_padding)
    layers = (*model.layers, *(model.mtp_layers if settled.extra else ()))
    caches = layer_caches(layers, tp=settled.plans.tp, kv_format=force.kv, draft_tokens=settled.draft_tokens)
    pairs = [(cache, layer.mixer) for cache, layer in zip(caches, layers, strict=True)]
    found = []
    for name in settled.plans.stages:
        span = Span.of(name, model, settled.plans, drafting_layers=settled.extra)
        windows = span.sum_of([cache.window for cache in caches]) * _window_ratio(model, settled.options, facts)
        counted = span.sum_of([_counted(cache, mixer, facts, force) for cache, mixer in pairs])
        stored = span.sum_of([_stored(cache, mixer, facts, force, settled.asked.accelerator) for cache, mixer in pairs])
        found.append(
            SglangStage(
                lines=_lines(settled, span, weights),
                counted=counted + windows,
                stored=stored + windows,
                state=span.sum_of([cache.state for cache in caches]),
            )
        )
    return found


def _lines(settled: SglangSettled, span: Span, weights: Weights) -> dict[str, Any]:
    """The lines of one stage, cache and table of requests apart."""
    model, force, plans, ranks = settled.model, settled.force, settled.plans, settled.ranks
    memory, widths, none = settled.facts.coefficients, Widths.of(settled.model), np.zeros(settled.plans.shape)
    row = np.asarray(max(force.chunk, memory["chunk"]["least_tokens"])) * (force.dtype.bits / 8)
    captured = 0 if settled.options.eager else force.graph_batch
    fabric = fabric_of(settled.asked.accelerator, memory)
    loaded = span.loaded(
        weights, attention_tp=plans.tp, tp=ranks, ep=plans.ep, drafts=bool(settled.extra),
        text_only=settled.options.text_only, on_host_bytes=settled.options.cpu_offload_bytes,
    )  # fmt: skip
    forward = forward_bytes(widths, memory, row=row, tp=ranks)
    logits = np.maximum(force.graph_batch, 1) * float(model.vocab) * memory["logits"]["bytes"]
    graphs = graph_bytes(
        widths,
        memory,
        layers=span.layers,
        graphs=rungs(memory["graphs"]["ladder"], captured),
        largest=captured,
        tp=ranks,
    )
    return {
        **loaded,
        "context": context_bytes(memory, ranks=ranks * plans.pp, fabric=fabric),
        "activations": forward + expert_bytes(widths, memory, row=row, tp=ranks, ep=plans.ep) + none,
        "logits": span.last * logits + none,
        "cuda_graphs": graphs + none,
    }


def _counted(cache: LayerCache, mixer: Mixer | None, facts: SglangFacts, force: InForce) -> Any:
    """Bytes a token that the engine reckons with; FP8 rows of sparse attention were once counted without their scales."""
    if mixer is None or not (mixer.is_latent and mixer.is_sparse):
        return cache.full
    latent = cache.full - cache.indexer
    if force.kv.bits == 8 and not facts.sparse_counted["scales"]:
        latent = latent * 0 + mixer.latent_width
    return latent + (cache.indexer if facts.sparse_counted["indexer"] else 0.0)


def _stored(
    cache: LayerCache, mixer: Mixer | None, facts: SglangFacts, force: InForce, accelerator: Accelerator
) -> Any:
    """Bytes a token that the pool takes and the engine prints; the indexer's own pool was not printed while uncounted."""
    if mixer is None or not (mixer.is_latent and mixer.is_sparse):
        return cache.full
    latent = cache.full - cache.indexer
    if force.kv.bits == 8 and (accelerator.compute_capability or 0.0) >= facts.sparse_raw_from:
        latent = latent * 0 + mixer.latent_width
    return latent + (cache.indexer if facts.sparse_counted["indexer"] else 0.0)


def _window_ratio(model: Model, options: ServeOptions, facts: SglangFacts) -> float:
    """Tokens of the window pool over those of the full pool; families without such a pool cache windows at full length."""
    if not any(model.family.startswith(family) for family in facts.window_pool_families):
        return 1.0
    if options.extra.get("disable-hybrid-swa-memory"):
        return 1.0
    return float(options.extra.get("swa-full-tokens-ratio") or facts.window_pool_ratio)
