"""vLLM's memory at start-up: what it gives itself, what goes in, and the cache pool that is left.

``KV = fraction · total − weights − activation peak − non-torch [− CUDA graphs since 0.21]`` on the tightest rank
(vllm/v1/worker/gpu_worker.py, determine_available_memory). One path serves a single plan and tables of plans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp
from trilemma.engines.draft import with_draft
from trilemma.engines.loading import as_stored, in_dtype
from trilemma.engines.offload import offloaded
from trilemma.engines.table import Plans
from trilemma.engines.vllm.defaults import InForce, in_force
from trilemma.engines.vllm.facts import VllmFacts, for_version
from trilemma.engines.vllm.groups import Grouping, group_pages
from trilemma.engines.vllm.lines import ledger, pool_spread
from trilemma.engines.vllm.pages import PageRules, layer_pages
from trilemma.engines.vllm.pool import count_pool
from trilemma.engines.vllm.stage import Stage, fixed_pool, inside_bytes, stage_lines, tightest, weight_table
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import memory_cautions, runtime_total
from trilemma.models.architecture import Model
from trilemma.plans import Draft, Layout, ServeOptions


def start_up(
    *, model: Model, accelerator: Accelerator, layout: Layout, options: ServeOptions, draft: Draft | None = None,
    version: str | None = None, free_bytes: float | None = None, capacity_bytes: float | None = None,
    date: str | None = None,
) -> StartUp:  # fmt: skip
    """What vLLM does with a card's memory when it starts, per GPU of the tightest rank.

    ``layout`` and ``options.max_seqs``, ``options.max_batched_tokens`` may be arrays (plans,); the answer has their
    shape. ``capacity_bytes`` replaces the card's runtime total; ``free_bytes`` is what other processes leave of it.
    ``version`` (or the release of ``date``) chooses the facts. Raises `InputError` for values that no engine accepts.
    """
    facts = for_version(version, date=date)
    if accelerator.vendor not in facts.vendors:
        raise InputError(f"vLLM does not run on {accelerator.name}; use a card of {', '.join(facts.vendors)}")
    total = runtime_total(accelerator)
    capacity = total.interval.value if capacity_bytes is None else float(capacity_bytes)
    if capacity <= 0 or (free_bytes is not None and free_bytes < 0):
        raise InputError(f"a card of {capacity:.0f} bytes with {free_bytes} free cannot be planned for")
    stored, stored_cautions = as_stored(model, options, facts.quantizes_while_loading)
    drafting = with_draft(stored, draft)
    force = in_force(drafting, options, facts, capacity_bytes=capacity, card=accelerator.id)
    served = in_dtype(drafting.model, force.dtype)
    plans = Plans.of(layout, max_seqs=force.max_seqs, max_batched_tokens=force.max_batched_tokens)
    grouping = _grouping(served, force, options, facts, plans.tp)
    table = weight_table(served, facts)
    stages = [
        stage_lines(name, served, table, accelerator, plans, force, options, facts, grouping) for name in plans.stages
    ]
    if stored is not model and not facts.quantizes_layer_by_layer:
        whole = weight_table(in_dtype(model, force.dtype), facts)
        stages = [
            replace(stage, load_peak=stage.load_peak * (whole.total_bytes / table.total_bytes)) for stage in stages
        ]
    budget = np.full(plans.shape, capacity * force.memory_fraction)
    chosen, available = tightest(stages, budget, grouping, options)
    fixed = fixed_pool(chosen, options) is not None
    if fixed:
        budget = inside_bytes(chosen) + available
    held_by_others = _held_by_others(capacity, free_bytes, chosen, facts)
    available = available - held_by_others
    count = count_pool(
        grouping, available_bytes=available, block_bytes=chosen.block_bytes, context=force.context,
        longest=model.max_positions, max_batched_tokens=plans.tokens, dcp=plans.dcp, facts=facts,
    )  # fmt: skip
    between = 0.0 if capacity_bytes is not None else (total.interval.high - total.interval.low) / 2
    spread = pool_spread(
        chosen, facts, served, total_bytes=between * force.memory_fraction,
        shared_bytes=capacity if accelerator.unified_memory else 0.0,
    )  # fmt: skip
    if fixed:
        spread = np.zeros_like(spread)
    need = count.need_blocks * chosen.block_bytes
    block = grouping.token_block if grouping is not None else 1
    pool = KvPool(
        available_bytes=plans.out(available),
        available_low_bytes=plans.out(available - spread),
        available_high_bytes=plans.out(available + spread),
        blocks=plans.out(count.blocks),
        block_size=plans.out(np.broadcast_to(block, plans.shape)),
        tokens=plans.out(count.tokens),
        concurrency=plans.out(count.concurrency),
        need_bytes=plans.out(need),
        bytes_per_token_per_gpu=plans.out(_rate(grouping, chosen.block_bytes, plans.dcp)),
        max_context=plans.out(count.max_context),
        least_blocks=plans.out(_least_blocks(grouping, plans, options, draft, facts)),
    )
    if _fits_itself(options) and not plans.table and 0 < pool.max_context < force.context:
        fitted = replace(options, context=int(pool.max_context), extra=_without_auto(options))
        return start_up(
            model=model, accelerator=accelerator, layout=layout, options=fitted, draft=draft, version=version,
            free_bytes=free_bytes, capacity_bytes=capacity_bytes, date=date,
        )  # fmt: skip
    return StartUp(
        ledger=ledger(chosen, np.maximum(available, 0), spread, facts, served, plans, force),
        capacity_bytes=capacity,
        budget_bytes=plans.out(budget),
        pool=pool,
        memory_fraction=force.memory_fraction,
        context=force.context,
        max_seqs=force.max_seqs,
        max_batched_tokens=force.max_batched_tokens,
        kv_format=force.kv.name,
        load_peak_bytes=plans.out(chosen.load_peak),
        version=facts.version,
        cautions=(
            *facts.cautions,
            *stored_cautions,
            *force.cautions,
            *(() if capacity_bytes else memory_cautions(accelerator)),
        ),
        spread_bytes=plans.out(np.broadcast_to(spread, plans.shape)),
        free_bytes=free_bytes,
        budget_checked_at_start=facts.budget_checked_at_start,
        on_host=offloaded(stored, layout, options, batched_tokens=force.max_batched_tokens),
    )


def _grouping(model: Model, force: InForce, options: ServeOptions, facts: VllmFacts, tp: Any) -> Grouping | None:
    """The cache groups of all layers, MTP layers among them where they draft."""
    latent = any(mixer.is_latent for mixer in model.mixers)
    rules = PageRules(
        kv=force.kv,
        block=options.block_size or (facts.mla_block_size if latent else facts.block_size),
        latent_block=options.block_size or facts.mla_block_size,
        compressed_block=options.block_size or facts.compressed_block_size,
        windows_kept=facts.hybrid_groups and not options.extra.get("disable-hybrid-kv-cache-manager"),
        chunks_kept=facts.chunked_attention_groups and not options.extra.get("disable-hybrid-kv-cache-manager"),
        draft_tokens=force.draft_tokens,
        state_mode=force.state_mode,
    )
    layers = (*model.layers, *(model.mtp_layers if force.drafts_by_layers else ()))
    return group_pages(
        layer_pages(layers, tp=tp, rules=rules), ratio=facts.group_ratio, state_alignment=facts.state_block_alignment,
        least_block=options.block_size or facts.block_size, packed=facts.packed_compressed,
    )  # fmt: skip


def _without_auto(options: ServeOptions) -> dict[str, Any]:
    return {name: value for name, value in options.extra.items() if name != "max-model-len"}


def _fits_itself(options: ServeOptions) -> bool:
    """Whether the engine lowers the context to what the pool holds (``--max-model-len auto``, _auto_fit_max_model_len)."""
    return options.extra.get("max-model-len") == "auto"


def _held_by_others(capacity: float, free_bytes: float | None, stage: Stage, facts: VllmFacts) -> Any:
    """What other processes hold; old versions counted it as their own, newer ones compare the budget with free memory."""
    if free_bytes is None or facts.budget_checked_at_start:
        return 0.0
    return np.maximum(capacity - free_bytes - stage.lines["context"], 0)


def _rate(grouping: Grouping | None, block_bytes: Any, dcp: Any) -> Any:
    """Bytes that one more token takes on one GPU at full context."""
    if grouping is None:
        return np.zeros(np.shape(block_bytes))
    whole = [group.pages.block for group in grouping.groups if group.pages.rule == "full"]
    if grouping.summed:
        whole = whole[:1]
    return sum((block_bytes / block for block in whole), start=np.zeros(np.shape(block_bytes))) / dcp


def _least_blocks(
    grouping: Grouping | None, plans: Plans, options: ServeOptions, draft: Draft | None, facts: VllmFacts
) -> Any:
    """Blocks without which graphs of recurrent models are refused: one state for each sequence."""
    states = grouping is not None and any(group.pages.rule == "state" for group in grouping.groups)
    if not states or not facts.state_block_check or options.eager or draft is not None:
        return np.zeros(plans.shape)
    return plans.seqs
