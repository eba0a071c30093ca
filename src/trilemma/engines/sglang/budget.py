"""SGLang's memory at start-up: a static share of what is free before loading, for weights and pool; the rest for serving.

``pool = free after loading − free before loading · (1 − fraction)`` (python/sglang/srt/model_executor and mem_cache,
profile_max_num_token, _profile_available_bytes). ``memory_fraction`` is ``--mem-fraction-static``: a share of what is free
once ranks can talk to each other, not of the card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.loading import in_dtype
from trilemma.engines.offload import offloaded
from trilemma.engines.rank_memory import half_widths
from trilemma.engines.sglang.adapters import adapter_slots
from trilemma.engines.sglang.defaults import SglangInForce, dp_attention, in_force
from trilemma.engines.sglang.facts import for_version
from trilemma.engines.sglang.stage import SglangSettled, SglangStage, stages
from trilemma.engines.start_up import (
    Asked,
    CardMemory,
    Formula,
    Rules,
    SizedPool,
    as_loaded,
    longest_request,
    root_of_squares,
)
from trilemma.engines.table import BroadcastPlans
from trilemma.errors import PlanWarning
from trilemma.hardware.memory import driver_gap_bytes
from trilemma.memory.adapter_slots import SlotBytes

_LOADED = ("weights", "adapter", "draft_model", "vision")
#: Slots of the table of each request's tokens beyond its context (mem_cache/memory_pool.py, ReqToTokenPool), 32-bit indices.
_SPARE_SLOTS, _INDEX_BYTES = 4, 4
#: Requests of full context in a pool of layers that keep nothing by the token: more than ever run at once.
_ENDLESS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """What the static share leaves on a stage: ``rest`` bytes, cut into states and tokens."""

    rest: Any
    states: Any
    state_slots: Any
    tokens: Any


def settle(asked: Asked) -> SglangSettled:
    """Options in force."""
    facts = for_version(asked.version, date=asked.date, changed=asked.changed)
    card = CardMemory.of(asked.accelerator, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes)
    drafting, stored, notes = as_loaded(asked, facts.quantizes_while_loading)
    force = in_force(
        drafting, asked.options, facts, accelerator=asked.accelerator, driver_bytes=_driver_bytes(asked, card),
        layout=asked.layout, draft=asked.draft,
    )  # fmt: skip
    compressed = any(mixer.is_compressed for mixer in asked.model.mixers)
    seqs = asked.options.max_seqs
    if seqs is None:
        seqs = facts.compressed_pool["requests"] if compressed else facts.requests["least"]
    plans = BroadcastPlans.of(asked.layout, max_seqs=seqs, max_batched_tokens=force.chunk)
    served = in_dtype(drafting.model, force.dtype)
    adapters, said = adapter_slots(asked.options, facts, dtype=force.dtype)
    return SglangSettled(
        asked=asked, card=card, facts=facts, model=served, plans=plans, context=force.context, kv=force.kv,
        memory_fraction=plans.out(np.broadcast_to(force.fraction, plans.shape)), warnings=(*notes, *force.warnings, *said),
        force=force, stored=stored, shared=np.broadcast_to(dp_attention(asked.layout, asked.options), plans.shape),
        extra=len(served.mtp_layers) if drafting.has_layers else 0, draft_tokens=drafting.tokens,
        slots=None if adapters is None else SlotBytes(served, adapters),
    )  # fmt: skip


def _driver_bytes(asked: Asked, card: CardMemory) -> float:
    """The driver's total, by which the engine knows a card."""
    driver = asked.accelerator.nvml_total_bytes
    if driver is not None and asked.capacity_bytes is None:
        return driver.value
    return card.capacity_bytes + driver_gap_bytes(card.capacity_bytes, asked.accelerator).value


def room(settled: SglangSettled, found: Sequence[SglangStage]) -> list[Any]:
    """Tokens that each stage has room for."""
    static = _static_bytes(settled, found)
    return [_cut(settled, stage, static).tokens for stage in found]


def _before_loading(settled: SglangSettled, found: Sequence[SglangStage]) -> Any:
    return settled.card.free_bytes - found[0].lines["context"]


def _static_bytes(settled: SglangSettled, found: Sequence[SglangStage]) -> Any:
    """The static share; sized after capture it has given room to a pass and to graphs already."""
    first = found[0].lines
    after = first["activations"] + first["cuda_graphs"] if settled.force.sized_after_capture else 0.0
    return _before_loading(settled, found) * settled.fraction - after


def _cut(settled: SglangSettled, stage: SglangStage, static_bytes: Any) -> _Cut:
    """Recurrent states get ``ratio / (1 + ratio)`` of what is left, or as many slots as asked for; tokens take the rest."""
    options, shape = settled.options, settled.plans.shape
    rest = static_bytes - sum(stage.lines[name] for name in _LOADED)
    if options.kv_cache_bytes is not None:
        rest = np.full(shape, float(options.kv_cache_bytes))
    states, slots = np.zeros(shape) + (stage.fixed if options.kv_cache_bytes is None else 0.0), np.full(shape, np.inf)
    recurrent = any(mixer.keeps_state for mixer in settled.model.mixers)
    if recurrent and options.kv_cache_bytes is None:
        each = stage.state * (1 + settled.draft_tokens)
        slots = _state_slots(settled, each, rest)
        states = states + slots * each
    # Given bytes are those of the pool as it is printed; a sized pool goes by what the engine reckons with.
    rate = stage.counted if options.kv_cache_bytes is None else stage.stored
    tokens = (rest - states) / np.maximum(rate, 1e-9)
    limit = options.extra.get("max-total-tokens")
    if limit is not None:
        tokens = np.minimum(tokens, float(limit))
    endless = np.where(rest > states, float(settled.context) * _ENDLESS, 0.0)
    return _Cut(
        rest=rest - states, states=states, state_slots=slots, tokens=np.where(stage.counted > 0, tokens, endless)
    )


def _state_slots(settled: SglangSettled, each: Any, rest: Any) -> Any:
    """Requests whose states of ``each`` bytes are kept: as asked for, else by their share of the ``rest``."""
    options = settled.options
    asked = options.extra.get("max-mamba-cache-size")
    if asked is None and options.prefix_caching is False and options.max_seqs is not None:
        asked = options.max_seqs
    if asked is not None:
        return np.maximum(np.asarray(asked, dtype=float), 0)
    ratio = float(options.extra.get("mamba-full-memory-ratio") or settled.facts.state_ratio)
    share = np.maximum(rest, 0) * ratio / (1 + ratio)
    return np.floor(share / np.maximum(each, 1))


def pool(settled: SglangSettled, stage: SglangStage, found: Sequence[SglangStage]) -> SizedPool:
    """Tokens and requests of what the static share leaves on the tightest ``stage``."""
    force, facts, plans, options = settled.force, settled.facts, settled.plans, settled.options
    before, fraction = _before_loading(settled, found), settled.fraction
    cut = _cut(settled, stage, _static_bytes(settled, found))
    rest, tokens = cut.rest, np.floor(np.maximum(cut.tokens, 0) / force.page) * force.page
    pool_bytes = np.where(rest > 0, tokens * stage.stored, rest)
    requests = _requests(settled, tokens, cut.state_slots)
    lines = {**stage.lines, "workspace": requests * float(force.context + _SPARE_SLOTS) * _INDEX_BYTES}
    half = {**half_widths(settled.model, lines, facts.coefficients, known=facts.known), "adapter": stage.adapter_half}
    scale = np.where(rest > 0, stage.stored / np.maximum(stage.counted, 1), 1.0)
    spread = _spread(settled, stage, half, rest) * scale
    held = sum(lines[name] for name in _LOADED)
    # What lies in it never goes beyond it but by whole pages; weights that do are no budget: they end the start.
    budget = np.where(rest > 0, np.maximum(before * fraction, held + cut.states + pool_bytes), before * fraction)
    concurrency = np.minimum(np.where(force.context > 0, tokens / force.context, 0.0), requests)
    return SizedPool(
        lines={**lines, "state_cache": cut.states, "kv_cache": np.maximum(pool_bytes, 0)},
        half={**half, "kv_cache": spread},
        outside=("context", "activations", "logits", "workspace", "cuda_graphs"),
        inputs={"version": facts.version, "kv": force.kv.name, "context": force.context, "page": force.page,
                "chunk": force.chunk, "fraction": settled.memory_fraction},
        budget_bytes=budget,
        available_bytes=pool_bytes,
        spread_bytes=spread,
        blocks=tokens // force.page,
        block_size=force.page,
        tokens=tokens,
        concurrency=np.minimum(concurrency, requests),
        need_bytes=np.where(force.context_stated, force.context, force.page) * stage.stored,
        rate=stage.stored,
        max_context=longest_request(settled, tokens),
        max_seqs=plans.out(requests),
        max_batched_tokens=force.chunk,
        load_peak_bytes=held + lines["context"],
        warnings=_warnings(stage, force, plans, tokens),
        on_host=offloaded(settled.stored, settled.asked.layout, options, batched_tokens=force.chunk, copied_whole=True),
    )  # fmt: skip


def _spread(settled: SglangSettled, stage: SglangStage, half: dict[str, Any], rest: Any) -> Any:
    """Half-width (90 %) of the bytes that the engine reckons to have left for its pool."""
    memory = settled.facts.coefficients
    return root_of_squares(
        *(half.get(name, 0.0) for name in _LOADED),
        (half["context"] + settled.card.uncertain_bytes) * settled.fraction,
        memory["spread"]["unified_memory_relative"] * settled.card.shared_bytes,
        _of_other_rule(stage, rest),
    )


def _of_other_rule(stage: SglangStage, rest: Any) -> Any:
    """Bytes by which the pool differs, at its own rate, where another rule for compressed attention may hold."""
    other = np.maximum(rest - stage.other_fixed, 0) / np.maximum(stage.other_rate, 1e-9) * stage.counted
    return np.where(stage.other_rate > 0, np.abs(other - np.maximum(rest, 0)), 0.0)


def _requests(settled: SglangSettled, tokens: Any, slots: Any) -> Any:
    """Requests that may run at once: as asked, else by the pool or the model; states that requests hold bound them."""
    options, facts, plans, rule = settled.options, settled.facts, settled.plans, settled.facts.requests
    found = np.clip(tokens / settled.context * rule["per_context"], rule["least"], rule["most"])
    if options.max_seqs is not None or any(mixer.is_compressed for mixer in settled.model.mixers):
        every = options.max_seqs is None and bool(options.extra.get("enable-dp-attention"))
        found = np.maximum(plans.seqs // np.where(every, plans.dp, 1), 1)
    each = 1 if options.prefix_caching is False else facts.states_per_request
    bounded = np.minimum(np.minimum(found, tokens // 2), np.floor(slots / each))
    return np.maximum(np.floor(bounded), 1)


def _warnings(stage: SglangStage, force: SglangInForce, plans: BroadcastPlans, tokens: Any) -> tuple[PlanWarning, ...]:
    found = []
    if np.any(stage.other_rate > 0):
        message = (
            "pools of compressed attention: since 0.5.15 states of the longest stride are kept by request, before by token;"
            " state the version"
        )
        found.append(PlanWarning(code="approximate-pool", message=message))
    if not plans.table and 0 < float(np.max(tokens)) < force.context:
        what = (
            "starts all the same and refuses longer requests"
            if force.context_stated
            else "starts and serves up to that"
        )
        message = (
            f"the pool holds {int(np.max(tokens)):,} tokens, fewer than the context of {force.context:,}: SGLang {what}"
        )
        found.append(PlanWarning(code="pool-below-context", message=message))
    if force.sized_after_capture:
        found.append(
            PlanWarning(
                code="sized-after-capture", message="the pool is sized after graph capture, from what is free then"
            )
        )
    return tuple(found)


_FORMULAS = {
    "weights": Formula(words="sum over tensors of bytes · ceil(units / ranks) / units, attention by its own ranks"),
    "adapter": Formula(
        words="slots · rank · (in + out) · bytes of every linear layer; half of what the vocabulary would take",
        source="python/sglang/srt/lora/mem_pool.py, LoRAMemoryPool.init_buffers",
    ),
    "draft_model": Formula(words="layers that draft, last stage"),
    "vision": Formula(words="tensors of the vision tower, first stage"),
    "kv_cache": Formula(
        words="tokens · bytes a token; tokens = (free before loading · fraction − weights − states) / counted bytes"
    ),
    "state_cache": Formula(words="slots · states of one request; slots by mamba_full_memory_ratio"),
    "activations": Formula(words="copies · chunk · (hidden, columns / ranks, routed rows)", table="forward"),
    "logits": Formula(words="largest graph batch · vocabulary · 4", table="logits"),
    "workspace": Formula(
        words="requests · (context + 4) · 4: the table of each request's tokens",
        source="mem_cache/memory_pool.py, ReqToTokenPool",
    ),
    "cuda_graphs": Formula(words="fixed + sizes · layers · c + experts by the largest batch", table="graphs"),
    "context": Formula(words="CUDA context and communicators, before memory is measured", table="context_gib"),
}
RULES = Rules(fraction_of="free before loading", formulas=_FORMULAS, settle=settle, stages=stages, room=room, pool=pool)
