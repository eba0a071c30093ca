"""vLLM's memory at start-up: what it gives itself, what goes in, and the cache pool that is left.

``KV = fraction · total − weights − activation peak − non-torch [− CUDA graphs since 0.21]`` on the tightest rank
(vllm/v1/worker/gpu_worker.py, determine_available_memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.engines.base import StartUp
from trilemma.engines.cards import unknown_there
from trilemma.engines.loading import in_dtype
from trilemma.engines.offload import offloaded
from trilemma.engines.preprocessing import KNOWN, most_pixels, stated
from trilemma.engines.start_up import Asked, CardMemory, Rules, SettledStart, SizedPool, as_loaded
from trilemma.engines.table import BroadcastPlans
from trilemma.engines.vllm.adapters import adapter_slots
from trilemma.engines.vllm.defaults import VllmInForce, in_force
from trilemma.engines.vllm.facts import VllmFacts, for_version
from trilemma.engines.vllm.groups import Grouping, group_pages
from trilemma.engines.vllm.lines import FORMULAS, pool_spread, widths_of
from trilemma.engines.vllm.overheads import Profiled
from trilemma.engines.vllm.pages import PageRules, layer_pages
from trilemma.engines.vllm.pool import count_pool
from trilemma.engines.vllm.stage import VllmStage, fixed_pool, inside_bytes, stage_of, weight_table
from trilemma.errors import PlanWarning, shorten
from trilemma.memory.adapter_slots import SlotBytes
from trilemma.memory.weights import WeightTable
from trilemma.models.architecture import Model
from trilemma.plans import ServeOptions
from trilemma.quantities import show_count


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmSettled(SettledStart):
    """``stored`` is the model as loaded; ``load_factor`` what it was before it was quantised over that."""

    facts: VllmFacts
    force: VllmInForce
    grouping: Grouping | None
    table: WeightTable
    stored: Model
    load_factor: float
    slots: SlotBytes | None

    @property
    def budget_bytes(self) -> Any:
        return np.full(self.plans.shape, self.card.capacity_bytes * self.memory_fraction)


def settle(asked: Asked) -> VllmSettled:
    """Options in force. Raises `InputError` for a card on which no rules of vLLM are known."""
    accelerator = asked.accelerator
    facts = _facts(asked)
    if accelerator.vendor not in facts.vendors:
        raise unknown_there("vLLM", accelerator, facts.vendors)
    card = CardMemory.of(accelerator, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes)
    drafting, stored, notes = as_loaded(asked, facts.quantizes_while_loading)
    force = in_force(drafting, asked.options, facts, capacity_bytes=card.capacity_bytes, card=accelerator.id)
    served = in_dtype(drafting.model, force.dtype)
    plans = BroadcastPlans.of(asked.layout, max_seqs=force.max_seqs, max_batched_tokens=force.max_batched_tokens)
    table, factor = weight_table(served, facts), 1.0
    if stored is not asked.model and not facts.quantizes_layer_by_layer:
        factor = weight_table(in_dtype(asked.model, force.dtype), facts).total_bytes / table.total_bytes
    adapters, _ = adapter_slots(asked.options, facts, dtype=force.dtype)
    return VllmSettled(
        asked=asked, card=card, facts=facts, model=served, plans=plans, context=force.context, kv=force.kv,
        memory_fraction=force.memory_fraction, warnings=(*notes, *force.warnings, *_of_version(asked, facts, force.context)),
        budget_checked_at_start=facts.budget_checked_at_start, force=force,
        grouping=_grouping(served, force, asked.options, facts, plans.tp), table=table, stored=stored, load_factor=factor,
        slots=None if adapters is None else SlotBytes(served, adapters),
    )  # fmt: skip


def _facts(asked: Asked) -> VllmFacts:
    """Those of the version, or of the older engine that it still has where the command asks for that or the newer one does
    not take what it asks for."""
    facts = for_version(asked.version, date=asked.date, changed=asked.changed)
    wanted = asked.options.extra.get("VLLM_USE_V1")
    if not facts.older_engine or not (
        wanted == "0" or (wanted is None and _starts_older(asked, facts.older_engine_for))
    ):
        return facts
    as_older = for_version(facts.older_engine, changed=asked.changed)
    return replace(as_older, version=facts.version, warnings=facts.warnings, known=facts.known)


def _starts_older(asked: Asked, reasons: tuple[str, ...]) -> bool:
    capability = asked.accelerator.compute_capability
    holding = {
        "before_ampere": capability is not None and capability < 8.0,
        "not_cuda": capability is None,
        "cache_format": asked.options.kv_dtype not in (None, "auto") and capability != 9.0,
        "draft": asked.draft is not None,
        "stages": np.min(asked.layout.pp) > 1 and asked.options.extra.get("distributed-executor-backend") != "ray",
    }
    return any(holding[reason] for reason in reasons)


def _of_version(asked: Asked, facts: VllmFacts, context: int) -> list[PlanWarning]:
    """Rules of the version that weigh on a start and that few logs told: videos profiled, latents cached as heads."""
    found, model = [], asked.model
    if facts.latents_as_heads and any(mixer.is_latent for mixer in model.mixers):
        message = f"vLLM {facts.version} caches keys and values of every latent head, not latents (those since 0.7.1)"
        found.append(PlanWarning(code="latents-as-heads", message=message))
    if model.multimodal and not asked.options.text_only:
        seen = Profiled.of(
            model,
            facts,
            context=context,
            limits=asked.options.multimodal_limits,
            most_pixels=most_pixels(asked.options.extra),
        )
        unread = [key for key in stated(asked.options.extra) if key not in KNOWN]
        if unread:
            message = f"--mm-processor-kwargs {', '.join(map(shorten, unread))}: what this changes in memory is not counted yet"
            found.append(PlanWarning(code="not-counted", message=message))
        if seen.further_tokens:
            message = (
                f"the profiling run shows the tower images and videos of {show_count(seen.patches)} patches; "
                "--limit-mm-per-prompt '{\"video\": 0}' leaves that memory to the cache"
            )
            found.append(PlanWarning(code="videos-profiled", message=message))
    return found


def stages(settled: VllmSettled) -> list[VllmStage]:
    """Every pipeline stage by itself."""
    return [
        stage_of(
            name, settled.model, settled.table, settled.asked.accelerator, settled.plans, settled.force, settled.options,
            settled.facts, settled.grouping, settled.slots,
        )
        for name in settled.plans.stages
    ]  # fmt: skip


def room(settled: VllmSettled, found: Sequence[VllmStage]) -> list[Any]:
    """Blocks that each stage has room for; where the number of blocks is fixed, the stage that needs most memory is tightest."""
    left = [_left(settled, stage) for stage in found]
    if settled.grouping is None:
        return left
    if "num-gpu-blocks-override" in settled.options.extra:
        return [-(value + inside_bytes(stage)) for value, stage in zip(left, found, strict=True)]
    return [value / stage.block_bytes for value, stage in zip(left, found, strict=True)]


def pool(settled: VllmSettled, stage: VllmStage, found: Sequence[VllmStage]) -> SizedPool:
    """Blocks, tokens and the longest request of what the tightest ``stage`` leaves."""
    facts, force, plans, options = settled.facts, settled.force, settled.plans, settled.options
    grouping, available, budget = settled.grouping, _left(settled, stage), settled.budget_bytes
    uncertain = settled.card.uncertain_bytes * force.memory_fraction
    half = widths_of(stage, facts, settled.model)
    spread = pool_spread(stage, half, facts, total_bytes=uncertain, shared_bytes=settled.card.shared_bytes)
    if fixed_pool(stage, options) is not None:
        budget, spread = inside_bytes(stage) + available, np.zeros_like(spread)
    available = available - _held_by_others(settled, stage)
    count = count_pool(
        grouping, available_bytes=available, block_bytes=stage.block_bytes, context=force.context,
        longest=settled.asked.model.max_positions, max_batched_tokens=plans.tokens, dcp=plans.dcp, facts=facts,
        checked_block=_checked_block(settled, stage),
    )  # fmt: skip
    return SizedPool(
        lines={**stage.lines, "kv_cache": np.maximum(available, 0) * (grouping is not None)},
        half={**half, "kv_cache": spread * (grouping is not None)},
        outside=("context",) if np.all(stage.graphs_inside) else ("context", "cuda_graphs"),
        inputs={
            **{name: plans.out(getattr(plans, name)) for name in ("tp", "pp", "dp", "ep")},
            "max_seqs": plans.out(plans.seqs), "max_batched_tokens": plans.out(plans.tokens), "version": facts.version,
        },
        pool_inputs={"kv": force.kv.name, "context": force.context},
        budget_bytes=budget,
        available_bytes=available,
        spread_bytes=spread,
        blocks=count.blocks,
        block_size=grouping.token_block if grouping is not None else 1,
        tokens=count.tokens,
        concurrency=count.concurrency,
        need_bytes=count.need_blocks * stage.block_bytes,
        checked_bytes=count.need_blocks * _checked_block(settled, stage),
        rate=_rate(grouping, stage.block_bytes, plans.dcp),
        grows_to=_grows_to(grouping, plans.tokens * facts.in_flight_batches),
        max_context=count.max_context,
        least_blocks=_least_blocks(settled),
        max_seqs=force.max_seqs,
        max_batched_tokens=force.max_batched_tokens,
        load_peak_bytes=np.maximum.reduce([one.load_peak * settled.load_factor for one in found]),
        on_host=offloaded(settled.stored, settled.asked.layout, options, batched_tokens=force.max_batched_tokens),
    )  # fmt: skip


def again(settled: VllmSettled, start: StartUp) -> Asked | None:
    """The engine lowers the context to what the pool holds (``--max-model-len auto``, _auto_fit_max_model_len)."""
    options = settled.options
    auto = options.extra.get("max-model-len") == "auto" and not settled.plans.table
    if not auto or not 0 < start.pool.max_context < settled.context:
        return None
    stated = {name: value for name, value in options.extra.items() if name != "max-model-len"}
    return replace(settled.asked, options=replace(options, context=int(start.pool.max_context), extra=stated))


def _left(settled: VllmSettled, stage: VllmStage) -> Any:
    """Bytes for the cache on a stage: as the command fixes them, else what the budget leaves."""
    fixed = fixed_pool(stage, settled.options)
    return settled.budget_bytes - inside_bytes(stage) if fixed is None else fixed


def _grouping(model: Model, force: VllmInForce, options: ServeOptions, facts: VllmFacts, tp: Any) -> Grouping | None:
    """The cache groups of all layers, MTP layers among them where they draft."""
    latent = any(mixer.is_latent for mixer in model.mixers)
    rules = PageRules(
        kv=force.kv,
        head_dim_of_latents=facts.latents_as_heads.get("head_dim", 0),
        block=options.block_size or (facts.mla_block_size if latent else facts.block_size),
        latent_block=options.block_size or facts.mla_block_size,
        compressed_block=options.block_size or facts.compressed_block_size,
        windows_kept=facts.hybrid_groups and not options.extra.get("disable-hybrid-kv-cache-manager"),
        chunks_kept=facts.chunked_attention_groups and not options.extra.get("disable-hybrid-kv-cache-manager"),
        draft_tokens=force.draft_tokens,
        state_mode=force.state_mode,
    )
    layers = (*model.layers, *(model.mtp_layers if force.drafts_by_layers else ()))
    if facts.states_at_start:
        layers = tuple(layer for layer in layers if layer.mixer is None or not layer.mixer.keeps_state)
    return group_pages(
        layer_pages(layers, tp=tp, rules=rules), ratio=facts.group_ratio, state_alignment=facts.state_block_alignment,
        least_block=options.block_size or facts.block_size, packed=facts.packed_compressed,
    )  # fmt: skip


def _held_by_others(settled: VllmSettled, stage: VllmStage) -> Any:
    """What other processes hold; old versions counted it as their own, newer ones compare the budget with free memory."""
    free_bytes = settled.asked.free_bytes
    if free_bytes is None or settled.budget_checked_at_start:
        return 0.0
    return np.maximum(settled.card.capacity_bytes - free_bytes - stage.lines["context"], 0)


def _rate(grouping: Grouping | None, block_bytes: Any, dcp: Any) -> Any:
    """Bytes that one more token takes on one GPU at full context; of windows alone, until they are full."""
    if grouping is None:
        return np.zeros(np.shape(block_bytes))
    whole = [group.pages.block for group in grouping.groups if group.pages.rule == "full"]
    if not whole:
        whole = [group.pages.block for group in grouping.groups if group.pages.rule != "state"]
    if grouping.summed:
        whole = whole[:1]
    return sum((block_bytes / block for block in whole), start=np.zeros(np.shape(block_bytes))) / dcp


def _checked_block(settled: VllmSettled, stage: VllmStage) -> Any:
    """Bytes of one block as the engine checks a request by it: of the stage, in some versions of the whole model."""
    grouping, model = settled.grouping, settled.model
    if grouping is None or not settled.facts.whole_model_check:
        return stage.block_bytes
    depth = len(model.layers) + (len(model.mtp_layers) if settled.force.drafts_by_layers else 0)
    return np.maximum(grouping.block_bytes(start=0, stop=depth, depth=depth), stage.block_bytes)


def _grows_to(grouping: Grouping | None, in_flight: Any) -> Any:
    """Tokens from which on a request takes no more pages: never with layers that keep every token."""
    pages = [] if grouping is None else [group.pages for group in grouping.groups if group.pages.rule != "state"]
    if not pages or any(one.rule == "full" for one in pages):
        return np.inf
    return max(one.span for one in pages) + np.asarray(in_flight)


def _least_blocks(settled: VllmSettled) -> Any:
    """Blocks without which graphs of recurrent models are refused: a state for each sequence, or for those captured at once."""
    groups = () if settled.grouping is None else settled.grouping.groups
    states, check = any(group.pages.rule == "state" for group in groups), settled.facts.state_block_check
    if not states or check == "none" or settled.options.eager or settled.asked.draft is not None:
        return np.zeros(settled.plans.shape)
    if check == "sequences":
        return settled.plans.seqs
    sizes = settled.options.cuda_graph_sizes
    most = settled.facts.graph_sizes.most if sizes is None else max(sizes, default=0)
    return np.minimum(settled.plans.seqs, most)


RULES = Rules(
    fraction_of="card", formulas=FORMULAS, settle=settle, stages=stages, room=room, pool=pool, again=again,
    shown=("weights", "activations", "logits", "workspace", "context", "kv_cache"),
)  # fmt: skip
