"""Transformers as a server: layers over the cards in turn (device_map auto), a cache that grows with the request, no pool.

With ``--continuous-batching`` a paged cache takes a share of what is free. Whole prompts are read in one pass. One path
serves one plan and tables of plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp
from trilemma.engines.launch import share_of_card
from trilemma.engines.layer_cache import layer_caches, summed
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
from trilemma.engines.start_up import ledger_of
from trilemma.engines.table import NOT_RUN, Plans
from trilemma.engines.transformers_serve.facts import for_version
from trilemma.errors import Caution, InputError
from trilemma.formats import catalogue
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import memory_cautions, runtime_total
from trilemma.memory.stages import stage_bounds
from trilemma.models.architecture import Model
from trilemma.plans import Draft, Layout, ServeOptions

_UNSTATED_CONTEXT = 4096
_QUANTIZES = {"bnb-4bit": "nf4", "bitsandbytes": "nf4", "bnb-8bit": "w8a16", "fp8": "fp8"}


def start_up(
    *, model: Model, accelerator: Accelerator, layout: Layout, options: ServeOptions, draft: Draft | None = None,
    version: str | None = None, free_bytes: float | None = None, capacity_bytes: float | None = None,
    date: str | None = None,
) -> StartUp:  # fmt: skip
    """What Transformers holds on the tightest card at the peak of the longest request, shapes as the other engines' answers.

    ``layout.pp`` cards hold layers in turn. Without continuous batching one request runs at a time, and the pool is what the
    request's own cache may grow to.
    """
    facts = for_version(version, date=date)
    total = runtime_total(accelerator)
    capacity = total.interval.value if capacity_bytes is None else float(capacity_bytes)
    if capacity <= 0 or (free_bytes is not None and free_bytes < 0):
        raise InputError(f"a card of {capacity:.0f} bytes with {free_bytes} free cannot be planned for")
    free = capacity if free_bytes is None else min(capacity, free_bytes)
    memory = facts.coefficients
    data = memory["eager"]
    stored, notes = as_stored(model, options, _QUANTIZES)
    dtype = computing_format(stored, options)
    if facts.loads_in_float32 and options.dtype is None and stored.quantization is None:
        dtype = catalogue.get("fp32")
        notes = (
            *notes,
            Caution(code="float32", message=f"Transformers {facts.version} loads in float32 unless told a dtype"),
        )
    served = in_dtype(stored, dtype)
    context = options.context or min(served.max_positions or _UNSTATED_CONTEXT, _UNSTATED_CONTEXT)
    if options.context is None:
        told = f"no longest request stated, and the command has no flag for it: {context:,} tokens assumed"
        notes = (*notes, Caution(code="assumed-context", message=told))
    paged = bool(options.extra.get("continuous-batching"))
    seqs = options.max_seqs if options.max_seqs is not None else facts.sequences
    chunk = options.max_batched_tokens if options.max_batched_tokens is not None else (8192 if paged else context)
    plans = Plans.of(layout, max_seqs=seqs, max_batched_tokens=chunk)
    beyond = plans.refused(
        (plans.tp > 1) | (plans.dp > 1) | (plans.ep > 1),
        "Transformers puts layers on cards in turn (--pp) and splits nothing else",
    )
    weights, widths = Weights(served, vocab_padding=1), Widths.of(served)
    caches = layer_caches(served.layers, tp=plans.tp, kv_format=dtype)
    stages = []
    for name in plans.stages:
        start, stop = stage_bounds(len(served.layers), plans.pp, name)
        first, last = start == 0, stop == len(served.layers)
        held = weights.on_rank(
            start=start,
            stop=stop,
            first=first,
            last=last,
            attention_tp=plans.tp,
            tp=plans.tp,
            ep=np.ones_like(plans.tp),
        )
        rows = plans.tokens if paged else np.minimum(plans.tokens, context) * plans.seqs
        row = np.asarray(rows) * (dtype.bits / 8)
        logits = (
            np.where(facts.logits_of_all_tokens, rows, plans.seqs) * float(served.vocab) * memory["logits"]["bytes"]
        )
        rate = summed([cache.full + cache.window for cache in caches], start, stop, plans.shape)
        state = summed([cache.state for cache in caches], start, stop, plans.shape)
        largest = max((float(np.max(cache.full + cache.window)) for cache in caches), default=0.0)
        lines = {
            "weights": held.text + np.zeros(plans.shape),
            "vision": np.zeros(plans.shape) if options.text_only else held.vision + np.zeros(plans.shape),
            "activations": np.zeros(plans.shape) + (
                forward_bytes(widths, memory, row=row, tp=plans.tp) + expert_bytes(widths, memory, row=row, tp=plans.tp, ep=1)
            ),
            "logits": last * logits + np.zeros(plans.shape),
            "workspace": np.zeros(plans.shape) if paged else np.zeros(plans.shape)
            + data["cache_growth_copies"] * largest * context * plans.seqs,
            "state_cache": state * plans.seqs,
            "context": context_bytes(memory, ranks=plans.tp, fabric=fabric_of(accelerator, memory)) + np.zeros(plans.shape),
        }  # fmt: skip
        lines["fragmentation"] = data["fragmentation_share"] * (lines["activations"] + lines["logits"])
        stages.append((lines, rate))
    left = [free - sum(lines.values()) for lines, _ in stages]
    room = [
        np.where(rate > 0, value / np.maximum(rate, 1e-9), value) for value, (_, rate) in zip(left, stages, strict=True)
    ]
    pick = np.argmin(np.stack(room), axis=0)

    def choose(values: list[Any]) -> Any:
        return np.take_along_axis(np.stack([np.broadcast_to(v, plans.shape) for v in values]), pick[None], axis=0)[0]

    lines = {name: choose([stage[0][name] for stage in stages]) for name in stages[0][0]}
    rate, available = choose([stage[1] for stage in stages]), choose(left)
    available = np.where(beyond, NOT_RUN, available)
    fraction = 1.0
    if paged:
        asked = options.memory_fraction
        fraction = facts.pool_share if asked is None else share_of_card(asked, shown="--cb-max-memory-percent")
        available = np.where(available > 0, available * fraction, available)
    half = half_widths(served, lines, memory, known=facts.known)
    between = 0.0 if capacity_bytes is not None else (total.interval.high - total.interval.low) / 2
    spread = np.sqrt(sum(np.square(value) for value in half.values()) + between**2)
    tokens = np.where(
        rate > 0, np.floor(np.maximum(available, 0) / np.maximum(rate, 1e-9)), float(context) * plans.seqs
    )
    need = context * rate * (1 if paged else plans.seqs)
    used = available if paged else np.minimum(need, np.maximum(available, 0))
    lines["kv_cache"] = np.maximum(used, 0)
    cautions = [*facts.cautions, *notes]
    if draft is not None:
        cautions.append(Caution(code="draft-not-counted", message="the assistant's weights and cache are not counted"))
    return StartUp(
        ledger=ledger_of(
            lines, {**half, "kv_cache": np.where(used < available, 0.0, spread)}, formulas=_FORMULAS, outside=("context",),
            out=plans.out,
            inputs={"version": facts.version, "dtype": dtype.name, "context": context, "sequences": plans.out(plans.seqs)},
        ),
        capacity_bytes=capacity,
        budget_bytes=plans.out(sum(value for name, value in lines.items() if name != "context")),
        pool=KvPool(
            available_bytes=plans.out(available),
            available_low_bytes=plans.out(available - spread),
            available_high_bytes=plans.out(available + spread),
            blocks=plans.out(tokens),
            block_size=1,
            tokens=plans.out(tokens),
            concurrency=plans.out(np.minimum(tokens / context, plans.seqs) if not paged else tokens / context),
            need_bytes=plans.out(need),
            bytes_per_token_per_gpu=plans.out(rate),
            max_context=plans.out(np.minimum(tokens, max(context, model.max_positions or 0)).astype(np.int64)),
        ),
        memory_fraction=fraction,
        context=context,
        max_seqs=plans.out(plans.seqs),
        max_batched_tokens=plans.out(plans.tokens),
        kv_format=dtype.name,
        load_peak_bytes=plans.out(lines["weights"] + lines["vision"] + lines["context"]),
        version=facts.version,
        cautions=(*cautions, *(() if capacity_bytes else memory_cautions(accelerator))),
        spread_bytes=plans.out(np.broadcast_to(spread, plans.shape)),
        free_bytes=free_bytes,
        fraction_of="nothing",
    )  # fmt: skip


_FORMULAS = {
    "weights": ("tensors of the layers on the card, ends on the first and last", "device_map auto of Accelerate"),
    "vision": ("tensors of the vision tower, first card", ""),
    "activations": ("copies · tokens of the whole prompt · (hidden, columns)", "data/coefficients/serving_memory"),
    "logits": ("rows kept · vocabulary · 4", "generation/utils.py, logits_to_keep"),
    "workspace": ("one layer's cache, copied when it grows", "cache_utils.py, DynamicLayer.update"),
    "fragmentation": ("what the allocator holds of freed blocks", "data/coefficients/serving_memory"),
    "state_cache": ("states of recurrent layers", ""),
    "context": ("CUDA context of the process", "data/coefficients/serving_memory"),
    "kv_cache": (
        "context · bytes a token · sequences; a share of free memory with continuous batching",
        "cache_utils.py",
    ),
}
