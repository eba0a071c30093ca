"""What one pipeline stage of SGLang needs of its card, cache apart, and what a token of its cache takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.engines.generating import generates_nothing
from trilemma.engines.layer_cache import LayerCache, layer_caches
from trilemma.engines.loading import absorbed_copies, kept_scales
from trilemma.engines.rank_memory import (
    Weights,
    Widths,
    context_bytes,
    expert_bytes,
    fabric_of,
    forward_bytes,
    graph_bytes,
    rope_table_bytes,
    rungs,
)
from trilemma.engines.sglang.compressed_pool import compressed_pool, layer_bytes, with_drafts
from trilemma.engines.sglang.defaults import SglangInForce, prompt_graph_bytes
from trilemma.engines.sglang.facts import SglangFacts
from trilemma.engines.stages import LayerSpan, PipelineStage
from trilemma.engines.start_up import (
    SettledStart,
)
from trilemma.hardware.accelerator import Accelerator
from trilemma.memory.adapter_slots import SlotBytes
from trilemma.models.architecture import Layer, Model, Tensor
from trilemma.models.attention import Mixer
from trilemma.plans import ServeOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangSettled(SettledStart):
    """``shared``: whether replicas share experts; ``extra`` layers draft; ``stored`` is the model as loaded."""

    facts: SglangFacts
    force: SglangInForce
    stored: Model
    shared: Any
    extra: int
    draft_tokens: int
    slots: SlotBytes | None

    @property
    def ranks(self) -> Any:
        return self.plans.tp * np.where(self.shared, self.plans.dp, 1)

    @property
    def fraction(self) -> Any:
        return np.broadcast_to(self.force.fraction, self.plans.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangStage(PipelineStage):
    """``counted`` and ``stored`` are bytes a token, ``state`` a request's states, ``fixed`` those kept for all requests at start;
    ``other_rate`` and ``other_fixed`` the same by the other rule where it is not known which holds, else 0. ``adapter_half`` is
    the half-width of the adapters' slots. Arrays (plans,).
    """

    counted: Any
    stored: Any
    state: Any
    fixed: Any
    other_rate: Any
    other_fixed: Any
    adapter_half: Any


def stages(settled: SglangSettled) -> list[SglangStage]:
    """Every pipeline stage by itself."""
    model, facts, force = settled.model, settled.facts, settled.force
    copies = [*absorbed_copies(model), *kept_scales(model, _kept_scale_bytes(settled))]
    weights = Weights(_as_cut(model, facts), extra=copies, vocab_padding=facts.vocab_padding)
    layers = (*model.layers, *(model.mtp_layers if settled.extra else ()))
    caches = layer_caches(layers, tp=settled.plans.tp, kv_format=force.kv, draft_tokens=settled.draft_tokens)
    pairs = [(cache, layer.mixer) for cache, layer in zip(caches, layers, strict=True)]
    found = []
    for name in settled.plans.stages:
        span = LayerSpan.of(name, model, settled.plans, drafting_layers=settled.extra)
        windows = span.sum_of([cache.window for cache in caches]) * _window_ratio(model, settled.options, facts)
        counted = span.sum_of([_counted(cache, mixer, facts, force) for cache, mixer in pairs])
        stored = span.sum_of([_stored(cache, mixer, facts, force, settled.asked.accelerator) for cache, mixer in pairs])
        packed, fixed, other_rate, other_fixed = _compressed(settled, span, layers)
        adapter, half = (0.0, 0.0) if settled.slots is None else settled.slots.on_rank(
            start=span.start, stop=span.stop, first=span.first, last=span.last, tp=settled.ranks, ep=settled.plans.ep,
            expert_tp=settled.ranks,
        )  # fmt: skip
        none = np.zeros(settled.plans.shape)
        found.append(
            SglangStage(
                lines={**_lines(settled, span, weights), "adapter": adapter + none},
                adapter_half=half + none,
                counted=counted + windows + packed,
                stored=stored + windows + packed,
                fixed=fixed,
                other_rate=other_rate,
                other_fixed=other_fixed,
                state=span.sum_of([cache.state for cache in caches]),
            )
        )
    return found


def _compressed(settled: SglangSettled, span: LayerSpan, layers: Sequence[Layer]) -> tuple[Any, Any, Any, Any]:
    """Of layers of compressed attention: bytes a token, bytes kept for all requests, and both by the other rule.

    Versions without a number are judged by the rule of the older ones, whose pools were published; what the newest would do
    bounds the answer.
    """
    none = np.zeros(settled.plans.shape)
    if not any(mixer.is_compressed for mixer in settled.model.mixers):
        return none, none, none, none

    def by(newest: bool) -> tuple[Any, Any]:
        drafting = settled.draft_tokens > 0
        pool = compressed_pool(
            settled.options, settled.facts, replicas=np.where(settled.shared, settled.plans.dp, 1), drafting=drafting,
            by_request=newest,
        )  # fmt: skip
        tokens, requests = layer_bytes(
            layers, pool, tp=settled.plans.tp, kv=settled.force.kv, drafting_from=len(settled.model.layers)
        )
        rate = with_drafts(span.sum_of(tokens), span.layers, drafting=drafting)
        return rate + none, span.sum_of(requests) + none

    if settled.asked.version is None and settled.facts.compressed_pool["by_request"]:
        return *by(False), *by(True)
    return *by(True), none, none


def _lines(settled: SglangSettled, span: LayerSpan, weights: Weights) -> dict[str, Any]:
    """The lines of one stage, cache and table of requests apart."""
    model, force, plans, ranks = settled.model, settled.force, settled.plans, settled.ranks
    memory, widths, none = settled.facts.coefficients, Widths.of(settled.model), np.zeros(settled.plans.shape)
    row = np.asarray(max(force.chunk, memory["chunk"]["least_tokens"])) * (force.dtype.bits / 8)
    # sglang/srt/model_executor/model_runner.py, init_device_graphs: graphs hold decode steps, which models that pool have not.
    pools = generates_nothing(model, "sglang", settled.options.extra)
    captured = 0 if settled.options.eager or pools else force.graph_batch
    fabric = fabric_of(settled.asked.accelerator, memory)
    loaded = span.loaded(
        weights, attention_tp=plans.tp, tp=ranks, ep=plans.ep, drafts=bool(settled.extra),
        text_only=settled.options.text_only, on_host_bytes=settled.options.cpu_offload_bytes,
    )  # fmt: skip
    forward = forward_bytes(widths, memory, row=row, tp=ranks)
    logits = (0 if pools else np.maximum(force.graph_batch, 1)) * float(model.vocab) * memory["logits"]["bytes"]
    graphs = graph_bytes(
        widths,
        memory,
        layers=span.layers,
        graphs=rungs(memory["graphs"]["ladder"], captured),
        largest=captured,
        tp=ranks,
    )
    # Of latent attention the engine keeps back a sum for whatever there is, of which no log tells what prompts take.
    prompts = 0.0 if force.latent else prompt_graph_bytes(settled.facts, force.prefill_graphs, latent=False)
    return {
        **loaded,
        "weights": loaded["weights"] + _rope_bytes(settled),
        "context": context_bytes(memory, ranks=ranks * plans.pp, fabric=fabric),
        "activations": forward + expert_bytes(widths, memory, row=row, tp=ranks, ep=plans.ep) + none,
        "logits": span.last * logits + none,
        "cuda_graphs": graphs + prompts + none,
    }


def _as_cut(model: Model, facts: SglangFacts) -> Model:
    """``model`` as its SGLang classes cut it where they differ from other engines': embeddings whole, towers in parts."""
    whole, cut = (
        any(model.family.startswith(family) for family in one) for one in (facts.whole_embeddings, facts.cut_towers)
    )
    if not whole and not cut:
        return model

    def laid(tensor: Tensor) -> Tensor:
        if whole and tensor.part == "embedding":
            return replace(tensor, shard="none")
        if cut and tensor.role == "vision.linear" and tensor.shard == "none":
            return replace(tensor, shard="column", shard_units=tensor.shape[-2])
        return tensor

    return replace(model, tensors=tuple(laid(tensor) for tensor in model.tensors))


def _kept_scale_bytes(settled: SglangSettled) -> float:
    """What stays of each scale of MXFP4 experts as it was loaded, where their kernels take another."""
    rule, capability = settled.facts.expert_scales_kept, settled.asked.accelerator.compute_capability or 0.0
    asked = str(settled.options.extra.get("moe-runner-backend") or "auto")
    expands = capability < rule["native_from"] or capability >= rule["native_below"]
    kept = asked in rule["backends"] or (asked == "auto" and expands)
    return float(rule["bytes"]) if kept and settled.asked.accelerator.vendor == "NVIDIA" else 0.0


def _rope_bytes(settled: SglangSettled) -> float:
    """The table of sines and cosines, of 32 bits on NVIDIA's cards, else in the model's format."""
    on_cuda = settled.asked.accelerator.vendor == "NVIDIA"
    element = settled.facts.rope_element_bytes if on_cuda else settled.force.dtype.bits / 8
    positions = settled.model.max_positions or settled.force.context
    return rope_table_bytes(settled.model, positions=float(positions), element_bytes=element)


def _counted(cache: LayerCache, mixer: Mixer | None, facts: SglangFacts, force: SglangInForce) -> Any:
    """Bytes a token that the engine reckons with; FP8 rows of sparse attention were once counted without their scales."""
    if mixer is not None and mixer.is_compressed:
        return cache.full * 0
    if mixer is None or not (mixer.is_latent and mixer.is_sparse):
        return cache.full
    latent = cache.full - cache.indexer
    if force.kv.bits == 8 and not facts.sparse_counted["scales"]:
        latent = latent * 0 + mixer.latent_width
    return latent + (cache.indexer if facts.sparse_counted["indexer"] else 0.0)


def _stored(
    cache: LayerCache, mixer: Mixer | None, facts: SglangFacts, force: SglangInForce, accelerator: Accelerator
) -> Any:
    """Bytes a token that the pool takes and the engine prints; the indexer's own pool was not printed while uncounted."""
    if mixer is not None and mixer.is_compressed:
        return cache.full * 0
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
