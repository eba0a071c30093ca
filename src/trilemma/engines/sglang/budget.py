"""SGLang's memory at start-up: a static share of what is free before loading, for weights and pool; the rest for serving.

``pool = free after loading − free before loading · (1 − fraction)`` (python/sglang/srt/model_executor and mem_cache,
profile_max_num_token, _profile_available_bytes). One path serves a single plan and tables of plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp
from trilemma.engines.draft import with_draft
from trilemma.engines.layer_cache import LayerCache, layer_caches, summed
from trilemma.engines.loading import absorbed_copies, as_stored, in_dtype
from trilemma.engines.offload import offloaded
from trilemma.engines.rank_memory import (
    Weights,
    Widths,
    context_bytes,
    expert_bytes,
    fabric_of,
    forward_bytes,
    graph_bytes,
    half_widths,
    pool_unknown,
    rungs,
)
from trilemma.engines.sglang.defaults import InForce, dp_attention, in_force
from trilemma.engines.sglang.facts import SglangFacts, for_version
from trilemma.engines.start_up import ledger_of
from trilemma.engines.table import Plans
from trilemma.errors import Caution, InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import driver_gap_bytes, memory_cautions, runtime_total
from trilemma.memory.stages import stage_bounds
from trilemma.models.architecture import Model
from trilemma.models.attention import Mixer
from trilemma.plans import Draft, Layout, ServeOptions

OUTSIDE = ("context", "activations", "logits", "workspace", "cuda_graphs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One pipeline stage; arrays (plans,). ``counted`` and ``stored`` are bytes a token, ``state`` a request's states."""

    lines: dict[str, Any]
    counted: Any
    stored: Any
    state: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pool:
    """What the static share leaves on a stage: ``rest`` bytes, cut into states and tokens."""

    rest: Any
    states: Any
    state_slots: Any
    tokens: Any


def start_up(
    *, model: Model, accelerator: Accelerator, layout: Layout, options: ServeOptions, draft: Draft | None = None,
    version: str | None = None, free_bytes: float | None = None, capacity_bytes: float | None = None,
    date: str | None = None,
) -> StartUp:  # fmt: skip
    """What SGLang does with a card's memory when it starts, per GPU of the tightest rank.

    Arguments and shapes as `trilemma.engines.vllm.budget.start_up`. ``memory_fraction`` is ``--mem-fraction-static``: a
    share of what is free once ranks can talk to each other, not of the card.
    """
    facts = for_version(version, date=date)
    total = runtime_total(accelerator)
    capacity = total.interval.value if capacity_bytes is None else float(capacity_bytes)
    if capacity <= 0 or (free_bytes is not None and free_bytes < 0):
        raise InputError(f"a card of {capacity:.0f} bytes with {free_bytes} free cannot be planned for")
    driver = accelerator.nvml_total_bytes
    if driver is not None and capacity_bytes is None:
        driver_bytes = driver.value
    else:
        driver_bytes = capacity + driver_gap_bytes(capacity, accelerator).value
    stored, stored_cautions = as_stored(model, options, facts.quantizes_while_loading)
    drafting = with_draft(stored, draft)
    force = in_force(
        drafting, options, facts, accelerator=accelerator, driver_bytes=driver_bytes, layout=layout, draft=draft
    )
    served = in_dtype(drafting.model, force.dtype)
    seqs = options.max_seqs if options.max_seqs is not None else facts.requests["least"]
    plans = Plans.of(layout, max_seqs=seqs, max_batched_tokens=force.chunk)
    shared = np.broadcast_to(dp_attention(layout, options), plans.shape)
    extra = len(served.mtp_layers) if drafting.has_layers else 0
    weights = Weights(served, extra=absorbed_copies(served), vocab_padding=facts.vocab_padding)
    caches = layer_caches(
        (*served.layers, *(served.mtp_layers if extra else ())), tp=plans.tp, kv_format=force.kv,
        draft_tokens=drafting.tokens,
    )  # fmt: skip
    stages = [
        _stage(name, served, weights, caches, accelerator, plans, force, options, facts, shared, extra)
        for name in plans.stages
    ]
    before = (capacity if free_bytes is None else min(capacity, free_bytes)) - stages[0].lines["context"]
    fraction = np.broadcast_to(force.fraction, plans.shape)
    after = stages[0].lines["activations"] + stages[0].lines["cuda_graphs"] if force.sized_after_capture else 0.0
    pools = [
        _pool(stage, before * fraction - after, served, options, facts, force, plans, drafting.tokens)
        for stage in stages
    ]
    pick = np.argmin(np.stack([pool.tokens for pool in pools]), axis=0)

    def choose(values: list[Any]) -> Any:
        return np.take_along_axis(np.stack([np.broadcast_to(v, plans.shape) for v in values]), pick[None], axis=0)[0]

    lines = {name: choose([stage.lines[name] for stage in stages]) for name in stages[0].lines}
    counted, stored_rate = choose([s.counted for s in stages]), choose([s.stored for s in stages])
    rest, states = choose([p.rest for p in pools]), choose([p.states for p in pools])
    slots, tokens = choose([p.state_slots for p in pools]), choose([p.tokens for p in pools])
    tokens = np.floor(np.maximum(tokens, 0) / force.page) * force.page
    pool_bytes = np.where(rest > 0, tokens * stored_rate, rest)
    requests = _requests(options, facts, tokens, force.context, slots, plans)
    lines["workspace"] = requests * float(force.context + 4) * 4
    half = half_widths(served, lines, facts.coefficients, known=facts.known)
    between = 0.0 if capacity_bytes is not None else (total.interval.high - total.interval.low) / 2
    unified = facts.coefficients["spread"]["unified_memory_relative"] * capacity if accelerator.unified_memory else 0.0
    names = ("weights", "draft_model", "vision")
    spread = np.sqrt(
        sum(np.square(half.get(name, 0.0)) for name in names)
        + np.square((half["context"] + between) * fraction)
        + np.square(unified)
        + np.square(pool_unknown(served, facts.coefficients, rest))
    )
    scale = np.where(rest > 0, stored_rate / np.maximum(counted, 1), 1.0)
    held = sum(lines[name] for name in names)
    need = np.where(force.context_stated, force.context, force.page) * stored_rate
    concurrency = np.minimum(np.where(force.context > 0, tokens / force.context, 0.0), requests)
    lines["state_cache"], lines["kv_cache"] = states, np.maximum(pool_bytes, 0)
    return StartUp(
        ledger=ledger_of(
            lines, {**half, "kv_cache": spread * scale}, formulas=_FORMULAS, outside=OUTSIDE, out=plans.out,
            inputs={"version": facts.version, "kv": force.kv.name, "context": force.context, "page": force.page,
                    "chunk": force.chunk, "fraction": plans.out(fraction)},
        ),
        capacity_bytes=capacity,
        # What lies in it never goes beyond it but by whole pages; weights that do are no budget: they end the start.
        budget_bytes=plans.out(np.where(rest > 0, np.maximum(before * fraction, held + states + pool_bytes), before * fraction)),
        pool=KvPool(
            available_bytes=plans.out(pool_bytes),
            available_low_bytes=plans.out(pool_bytes - spread * scale),
            available_high_bytes=plans.out(pool_bytes + spread * scale),
            blocks=plans.out(tokens // force.page),
            block_size=force.page,
            tokens=plans.out(tokens),
            concurrency=plans.out(np.minimum(concurrency, requests)),
            need_bytes=plans.out(need + np.zeros(plans.shape)),
            bytes_per_token_per_gpu=plans.out(stored_rate),
            max_context=plans.out(np.minimum(tokens, max(force.context, model.max_positions or 0)).astype(np.int64)),
        ),
        memory_fraction=plans.out(fraction),
        context=force.context,
        max_seqs=plans.out(requests),
        max_batched_tokens=force.chunk,
        kv_format=force.kv.name,
        load_peak_bytes=plans.out(held + lines["context"]),
        version=facts.version,
        cautions=(*facts.cautions, *stored_cautions, *force.cautions, *_cautions(served, force, plans, tokens),
                  *(() if capacity_bytes else memory_cautions(accelerator))),
        spread_bytes=plans.out(np.broadcast_to(spread * scale, plans.shape)),
        free_bytes=free_bytes,
        fraction_of="free before loading",
        on_host=offloaded(stored, layout, options, batched_tokens=force.chunk, copied_whole=True),
    )  # fmt: skip


def _stage(
    name: str, model: Model, weights: Weights, caches: list[LayerCache], accelerator: Accelerator, plans: Plans, force: InForce,
    options: ServeOptions, facts: SglangFacts, shared: Any, extra: int,
) -> Stage:  # fmt: skip
    depth = len(model.layers)
    start, stop = stage_bounds(depth, plans.pp, name)
    first, last = start == 0, stop == depth
    ranks = plans.tp * np.where(shared, plans.dp, 1)
    held = weights.on_rank(start=start, stop=stop, first=first, last=last, attention_tp=plans.tp, tp=ranks, ep=plans.ep)
    upto = np.where(last, stop + extra, stop)
    memory, widths = facts.coefficients, Widths.of(model)
    row = np.asarray(max(force.chunk, memory["forward"]["least_tokens"])) * (force.dtype.bits / 8)
    mixers = [layer.mixer for layer in (*model.layers, *(model.mtp_layers if extra else ()))]
    raw = [_counted(cache, mixer, facts, force) for cache, mixer in zip(caches, mixers, strict=True)]
    on_card = [_stored(cache, mixer, facts, force, accelerator) for cache, mixer in zip(caches, mixers, strict=True)]
    ratio = _window_ratio(model, options, facts)
    windows = summed([cache.window for cache in caches], start, upto, plans.shape) * ratio
    lines = {
        "weights": np.maximum(held.text - options.cpu_offload_bytes, 0) + np.zeros(plans.shape),
        "draft_model": held.mtp + np.zeros(plans.shape) if extra else np.zeros(plans.shape),
        "vision": np.zeros(plans.shape) if options.text_only else held.vision + np.zeros(plans.shape),
        "context": context_bytes(memory, ranks=ranks * plans.pp, fabric=fabric_of(accelerator, memory)),
        "activations": forward_bytes(widths, memory, row=row, tp=ranks)
        + expert_bytes(widths, memory, row=row, tp=ranks, ep=plans.ep) + np.zeros(plans.shape),
        "logits": last * np.maximum(force.graph_batch, 1) * float(model.vocab) * memory["logits"]["bytes"]
        + np.zeros(plans.shape),
        "cuda_graphs": graph_bytes(
            widths, memory, layers=stop - start, graphs=rungs(memory["graphs"]["ladder"], force.graph_batch),
            largest=force.graph_batch, tp=ranks,
        ) + np.zeros(plans.shape),
    }  # fmt: skip
    if options.eager:
        lines["cuda_graphs"] = np.zeros(plans.shape)
    return Stage(
        lines=lines,
        counted=summed(raw, start, upto, plans.shape) + windows,
        stored=summed(on_card, start, upto, plans.shape) + windows,
        state=summed([cache.state for cache in caches], start, upto, plans.shape),
    )


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


def _pool(
    stage: Stage, static_bytes: Any, model: Model, options: ServeOptions, facts: SglangFacts, force: InForce, plans: Plans,
    draft_tokens: int,
) -> _Pool:  # fmt: skip
    """Recurrent states get ``ratio / (1 + ratio)`` of what is left, or as many slots as asked for; tokens take the rest."""
    rest = static_bytes - stage.lines["weights"] - stage.lines["draft_model"] - stage.lines["vision"]
    if options.kv_cache_bytes is not None:
        rest = np.full(plans.shape, float(options.kv_cache_bytes))
    states, slots = np.zeros(plans.shape), np.full(plans.shape, np.inf)
    recurrent = any(mixer.keeps_state for mixer in model.mixers)
    if recurrent and options.kv_cache_bytes is None:
        each = stage.state * (1 + draft_tokens)
        asked = options.extra.get("max-mamba-cache-size")
        ratio = float(options.extra.get("mamba-full-memory-ratio") or facts.state_ratio)
        if asked is None and options.prefix_caching is False and options.max_seqs is not None:
            asked = options.max_seqs
        share = np.maximum(rest, 0) * ratio / (1 + ratio)
        slots = (
            np.floor(share / np.maximum(each, 1)) if asked is None else np.maximum(np.asarray(asked, dtype=float), 0)
        )
        states = slots * each
    # Given bytes are those of the pool as it is printed; a sized pool goes by what the engine reckons with.
    rate = stage.counted if options.kv_cache_bytes is None else stage.stored
    tokens = (rest - states) / np.maximum(rate, 1e-9)
    limit = options.extra.get("max-total-tokens")
    if limit is not None:
        tokens = np.minimum(tokens, float(limit))
    tokens = np.where(stage.counted > 0, tokens, np.where(rest > states, float(force.context) * 4096, 0.0))
    return _Pool(rest=rest - states, states=states, state_slots=slots, tokens=tokens)


def _requests(options: ServeOptions, facts: SglangFacts, tokens: Any, context: int, slots: Any, plans: Plans) -> Any:
    """Requests that may run at once: as asked, else by the pool; states that requests hold bound them."""
    rule = facts.requests
    found = np.clip(tokens / context * rule["per_context"], rule["least"], rule["most"])
    if options.max_seqs is not None:
        found = np.maximum(plans.seqs // np.where(dp_attention_asked(options), plans.dp, 1), 1)
    each = 1 if options.prefix_caching is False else facts.states_per_request
    bounded = np.minimum(np.minimum(found, tokens // 2), np.floor(slots / each))
    return np.maximum(np.floor(bounded), 1)


def dp_attention_asked(options: ServeOptions) -> bool:
    """Whether the command itself asks for attention replicas: its ``--max-running-requests`` counts all of them."""
    return bool(options.extra.get("enable-dp-attention"))


def _cautions(model: Model, force: InForce, plans: Plans, tokens: Any) -> tuple[Caution, ...]:
    found = []
    if any(mixer.is_compressed for mixer in model.mixers):
        message = (
            "pools of compressed attention are counted by their growth; SGLang sizes windows and states by requests"
        )
        found.append(Caution(code="approximate-pool", message=message))
    if not plans.table and 0 < float(np.max(tokens)) < force.context:
        what = (
            "starts all the same and refuses longer requests"
            if force.context_stated
            else "starts and serves up to that"
        )
        message = (
            f"the pool holds {int(np.max(tokens)):,} tokens, fewer than the context of {force.context:,}: SGLang {what}"
        )
        found.append(Caution(code="pool-below-context", message=message))
    if force.sized_after_capture:
        found.append(
            Caution(code="sized-after-capture", message="the pool is sized after graph capture, from what is free then")
        )
    return tuple(found)


_FORWARD = "data/coefficients/serving_memory"
_FORMULAS = {
    "weights": ("sum over tensors of bytes · ceil(units / ranks) / units, attention by its own ranks", ""),
    "draft_model": ("layers that draft, last stage", ""),
    "vision": ("tensors of the vision tower, first stage", ""),
    "kv_cache": ("tokens · bytes a token; tokens = (free before loading · fraction − weights − states) / counted bytes", ""),
    "state_cache": ("slots · states of one request; slots by mamba_full_memory_ratio", ""),
    "activations": ("copies · chunk · (hidden, columns / ranks, routed rows)", _FORWARD),
    "logits": ("largest graph batch · vocabulary · 4", _FORWARD),
    "workspace": ("requests · (context + 4) · 4: the table of each request's tokens", "mem_cache/memory_pool.py, ReqToTokenPool"),
    "cuda_graphs": ("fixed + sizes · layers · c + experts by the largest batch", _FORWARD),
    "context": ("CUDA context and communicators, before memory is measured", _FORWARD),
}  # fmt: skip
