"""Transformers as a server: layers over the cards in turn (device_map auto), a cache that grows with the request, no pool.

With ``--continuous-batching`` a paged cache takes a share of what is free. Whole prompts are read in one pass. Without it one
request runs at a time, and the pool is what the request's own cache may grow to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.launch import share_of_card
from trilemma.engines.layer_cache import LayerCache, layer_caches
from trilemma.engines.loading import as_stored, computing_format, in_dtype
from trilemma.engines.rank_memory import (
    Weights,
    Widths,
    context_bytes,
    expert_bytes,
    fabric_of,
    forward_bytes,
    half_widths,
)
from trilemma.engines.stages import LayerSpan, PipelineStage
from trilemma.engines.start_up import (
    Asked,
    CardMemory,
    Formula,
    Rules,
    SettledStart,
    SizedPool,
    longest_request,
    root_of_squares,
)
from trilemma.engines.table import NOT_RUN, BroadcastPlans
from trilemma.engines.transformers_serve.facts import TransformersFacts, for_version
from trilemma.errors import PlanWarning
from trilemma.formats import catalogue


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersSettled(SettledStart):
    """``paged``: whether a share of what is free is one cache for all; ``beyond``: layouts that the engine does not run."""

    facts: TransformersFacts
    paged: bool
    beyond: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersStage(PipelineStage):
    """``rate``: bytes a token; arrays (plans,)."""

    rate: Any


def settle(asked: Asked) -> TransformersSettled:
    """Options in force. Raises `InputError` for layouts and shares that the engine does not take."""
    facts, options = for_version(asked.version, date=asked.date, changed=asked.changed), asked.options
    card = CardMemory.of(asked.accelerator, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes)
    stored, notes = as_stored(asked.model, options, facts.quantizes_while_loading)
    dtype = computing_format(stored, options)
    if facts.loads_in_float32 and options.dtype is None and stored.quantization is None:
        dtype = catalogue.get("fp32")
        told = f"Transformers {facts.version} loads in float32 unless told a dtype"
        notes = (*notes, PlanWarning(code="float32", message=told))
    served = in_dtype(stored, dtype)
    unstated = facts.coefficients["unstated"]["context"]
    context = options.context or min(served.max_positions or unstated, unstated)
    if options.context is None:
        told = f"no longest request stated, and the command has no flag for it: {context:,} tokens assumed"
        notes = (*notes, PlanWarning(code="assumed-context", message=told))
    if asked.draft is not None:
        told = "the assistant's weights and cache are not counted"
        notes = (*notes, PlanWarning(code="draft-not-counted", message=told))
    paged = bool(options.extra.get("continuous-batching"))
    chunk = options.max_batched_tokens
    plans = BroadcastPlans.of(
        asked.layout,
        max_seqs=facts.sequences if options.max_seqs is None else options.max_seqs,
        max_batched_tokens=chunk if chunk is not None else facts.paged_tokens if paged else context,
    )
    beyond = plans.refused(
        (plans.tp > 1) | (plans.dp > 1) | (plans.ep > 1),
        "Transformers puts layers on cards in turn (--pp) and splits nothing else",
    )
    share, fraction = options.memory_fraction, 1.0
    if paged:
        fraction = facts.pool_share if share is None else share_of_card(share, shown="--cb-max-memory-percent")
    return TransformersSettled(
        asked=asked, card=card, facts=facts, model=served, plans=plans, context=context, kv=dtype, memory_fraction=fraction,
        warnings=notes, paged=paged, beyond=beyond,
    )  # fmt: skip


def stages(settled: TransformersSettled) -> list[TransformersStage]:
    """Every card by itself."""
    weights = Weights(settled.model, vocab_padding=1)
    caches = layer_caches(settled.model.layers, tp=settled.plans.tp, kv_format=settled.kv)
    spans = [LayerSpan.of(name, settled.model, settled.plans) for name in settled.plans.stages]
    return [
        TransformersStage(
            lines=_lines(settled, span, weights, caches),
            rate=span.sum_of([cache.full + cache.window for cache in caches]),
        )
        for span in spans
    ]


def _lines(
    settled: TransformersSettled, span: LayerSpan, weights: Weights, caches: Sequence[LayerCache]
) -> dict[str, Any]:
    """The lines of one card, cache apart: a pass over whole prompts, and the largest layer's cache while it is copied."""
    plans, facts, model, paged = settled.plans, settled.facts, settled.model, settled.paged
    memory, widths, none = facts.coefficients, Widths.of(model), np.zeros(plans.shape)
    rows = plans.tokens if paged else np.minimum(plans.tokens, settled.context) * plans.seqs
    row = np.asarray(rows) * (settled.kv.bits / 8)
    kept = np.where(facts.logits_of_all_tokens, rows, plans.seqs)
    largest = max((float(np.max(cache.full + cache.window)) for cache in caches), default=0.0)
    growing = memory["eager"]["cache_growth_copies"] * largest * settled.context * plans.seqs
    alone = np.ones_like(plans.tp)
    loaded = span.loaded(
        weights, attention_tp=plans.tp, tp=plans.tp, ep=alone, drafts=False, text_only=settled.options.text_only
    )
    activations = forward_bytes(widths, memory, row=row, tp=plans.tp) + expert_bytes(
        widths, memory, row=row, tp=plans.tp, ep=1
    )
    lines = {
        "weights": loaded["weights"],
        "vision": loaded["vision"],
        "activations": none + activations,
        "logits": span.last * (kept * float(model.vocab) * memory["logits"]["bytes"]) + none,
        "workspace": none if paged else none + growing,
        "state_cache": span.sum_of([cache.state for cache in caches]) * plans.seqs,
        "context": context_bytes(memory, ranks=plans.tp, fabric=fabric_of(settled.asked.accelerator, memory)) + none,
    }
    freed = memory["eager"]["fragmentation_share"] * (lines["activations"] + lines["logits"])
    return {**lines, "fragmentation": freed}


def _left(settled: TransformersSettled, stage: TransformersStage) -> Any:
    return settled.card.free_bytes - sum(stage.lines.values())


def room(settled: TransformersSettled, found: Sequence[TransformersStage]) -> list[Any]:
    """Tokens that each card has room for, bytes where its layers keep none."""
    left = [_left(settled, stage) for stage in found]
    return [
        np.where(stage.rate > 0, value / np.maximum(stage.rate, 1e-9), value)
        for value, stage in zip(left, found, strict=True)
    ]


def pool(settled: TransformersSettled, stage: TransformersStage, found: Sequence[TransformersStage]) -> SizedPool:
    """What the cache of the requests in flight grows to on the tightest card, or the share that continuous batching takes."""
    del found
    facts, plans, context, paged, rate = settled.facts, settled.plans, settled.context, settled.paged, stage.rate
    available = np.where(settled.beyond, NOT_RUN, _left(settled, stage))
    if paged:
        available = np.where(available > 0, available * settled.memory_fraction, available)
    half = half_widths(settled.model, stage.lines, facts.coefficients, known=facts.known)
    spread = root_of_squares(*half.values(), settled.card.uncertain_bytes)
    endless = float(context) * plans.seqs
    tokens = np.where(rate > 0, np.floor(np.maximum(available, 0) / np.maximum(rate, 1e-9)), endless)
    need = context * rate * (1 if paged else plans.seqs)
    used = available if paged else np.minimum(need, np.maximum(available, 0))
    lines = {**stage.lines, "kv_cache": np.maximum(used, 0)}
    return SizedPool(
        lines=lines,
        half={**half, "kv_cache": np.where(used < available, 0.0, spread)},
        outside=("context",),
        inputs={
            "version": facts.version,
            "dtype": settled.kv.name,
            "context": context,
            "sequences": plans.out(plans.seqs),
        },
        budget_bytes=sum(value for name, value in lines.items() if name != "context"),
        available_bytes=available,
        spread_bytes=spread,
        blocks=tokens,
        block_size=1,
        tokens=tokens,
        concurrency=tokens / context if paged else np.minimum(tokens / context, plans.seqs),
        need_bytes=need,
        rate=rate,
        max_context=longest_request(settled, tokens),
        max_seqs=plans.out(plans.seqs),
        max_batched_tokens=plans.out(plans.tokens),
        load_peak_bytes=lines["weights"] + lines["vision"] + lines["context"],
    )


_FORMULAS = {
    "weights": Formula(
        words="tensors of the layers on the card, ends on the first and last", source="device_map auto of Accelerate"
    ),
    "vision": Formula(words="tensors of the vision tower, first card"),
    "activations": Formula(words="copies · tokens of the whole prompt · (hidden, columns)", table="forward"),
    "logits": Formula(words="rows kept · vocabulary · 4", source="generation/utils.py, logits_to_keep"),
    "workspace": Formula(words="one layer's cache, copied when it grows", source="cache_utils.py, DynamicLayer.update"),
    "fragmentation": Formula(words="what the allocator holds of freed blocks", table="eager"),
    "state_cache": Formula(words="states of recurrent layers"),
    "context": Formula(words="CUDA context of the process", table="context_gib"),
    "kv_cache": Formula(
        words="context · bytes a token · sequences; a share of free memory with continuous batching",
        source="cache_utils.py",
    ),
}
RULES = Rules(fraction_of="nothing", formulas=_FORMULAS, settle=settle, stages=stages, room=room, pool=pool)
