"""What one pipeline stage needs of its card, cache apart, and which stage leaves least for the cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from trilemma.engines.generating import generates_nothing
from trilemma.engines.loading import absorbed_copies
from trilemma.engines.preprocessing import most_pixels
from trilemma.engines.rank_memory import Widths, buffer_bytes, context_bytes, fabric_of, graph_bytes, rope_table_bytes
from trilemma.engines.stages import LayerSpan, PipelineStage
from trilemma.engines.table import BroadcastPlans
from trilemma.engines.vllm.defaults import VllmInForce
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.engines.vllm.groups import Grouping
from trilemma.engines.vllm.overheads import activation_peak, captured, flashinfer_workspace
from trilemma.hardware.accelerator import Accelerator
from trilemma.memory.adapter_slots import SlotBytes
from trilemma.memory.weights import WeightTable, rank_weights
from trilemma.models.architecture import Model
from trilemma.models.identity import ByIdentity
from trilemma.plans import ServeOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmStage(PipelineStage):
    """``graphs_inside``: whether CUDA graphs count as part of the budget; ``block_bytes`` of one block of the pool;
    ``adapter_half`` the half-width of the adapters' slots."""

    load_peak: Any
    block_bytes: Any
    graphs_inside: Any
    adapter_half: Any


def stage_of(
    name: str, model: Model, table: WeightTable, accelerator: Accelerator, plans: BroadcastPlans,
    force: VllmInForce, options: ServeOptions,
    facts: VllmFacts, grouping: Grouping | None, slots: SlotBytes | None,
) -> VllmStage:  # fmt: skip
    """The lines of one pipeline stage, cache apart."""
    extra = len(model.mtp_layers) if force.drafts_by_layers else 0
    span = LayerSpan.of(name, model, plans, drafting_layers=extra)
    weights = rank_weights(
        table, start=span.start, stop=span.stop, first=span.first, last=span.last, tp=plans.tp, ep=plans.ep,
        expert_tp=plans.tp * plans.dp, vocab_padding=facts.vocab_padding,
    )  # fmt: skip
    adapter, adapter_half = (0.0, 0.0) if slots is None else slots.on_rank(
        start=span.start, stop=span.stop, first=span.first, last=span.last, tp=plans.tp, ep=plans.ep,
        expert_tp=plans.tp * plans.dp,
    )  # fmt: skip
    memory, widths = facts.coefficients, Widths.of(model)
    fabric = fabric_of(accelerator, memory)
    peak = activation_peak(
        model, widths=widths, facts=facts, tp=plans.tp, ep=plans.ep, last=span.last, max_seqs=plans.seqs, tokens=plans.tokens,
        dtype_bytes=force.dtype.bits / 8, context=force.context, text_only=options.text_only,
        compute_capability=accelerator.compute_capability, limits=options.multimodal_limits,
        most_pixels=most_pixels(options.extra), samples=not generates_nothing(model, "vllm", options.extra),
    )  # fmt: skip
    workspace, communication = buffer_bytes(memory, ranks=plans.tp, fabric=fabric)
    attending = flashinfer_workspace(
        facts, kv=force.kv, compute_capability=accelerator.compute_capability,
        backend=options.extra.get("attention-backend"),
    ) * (force.draft_tokens > 0)  # fmt: skip
    graphs, largest = captured(
        facts, max_seqs=plans.seqs, tokens=plans.tokens, draft_tokens=force.draft_tokens, sizes=options.cuda_graph_sizes,
        eager=options.eager, pp=plans.pp, piecewise=attending > 0 and not any(mixer.is_latent for mixer in model.mixers),
    )  # fmt: skip
    graphs = graph_bytes(widths, memory, layers=span.layers, graphs=graphs, largest=largest, tp=plans.tp)
    skipped = facts.second_runner_skips_graphs and not widths.expert_rows and not model.is_hybrid
    inside = facts.graphs_in_budget and not skipped
    share = memory["graphs"]["charged_share"] if inside else memory["graphs"]["second_runner_share"] if skipped else 1.0
    resident = np.maximum(weights.text + _rope_bytes(model, force, facts) - options.cpu_offload_bytes, 0)
    lines = {
        "weights": resident,
        "adapter": adapter,
        "state_cache": _states(model, span, plans, force) if facts.states_at_start else np.zeros(plans.shape),
        "draft_model": weights.mtp if force.drafts_by_layers else np.zeros(plans.shape),
        "vision": np.zeros(plans.shape) if options.text_only else weights.vision + np.zeros(plans.shape),
        "activations": peak.activations,
        "logits": peak.logits,
        "workspace": workspace,
        "communication": communication,
        "cuda_graphs": graphs * share + attending * (largest > 0),
        "context": context_bytes(memory, ranks=plans.tp, fabric=fabric),
    }
    lines = {key: np.broadcast_to(value, plans.shape) for key, value in lines.items()}
    loaded = lines["weights"] + lines["adapter"] + lines["draft_model"] + lines["vision"]
    block = 1.0
    if grouping is not None:
        block = grouping.block_bytes(start=span.start, stop=span.upto, depth=len(model.layers) + extra)
    return VllmStage(
        lines=lines, load_peak=loaded + lines["context"] + lines["communication"],
        block_bytes=np.broadcast_to(block, plans.shape), graphs_inside=np.full(plans.shape, inside),
        adapter_half=np.broadcast_to(adapter_half, plans.shape),
    )  # fmt: skip


def _states(model: Model, span: LayerSpan, plans: BroadcastPlans, force: VllmInForce) -> Any:
    """FP32 states of all sequences that may run at once, for every recurrent layer of the stage (see the fact's source)."""
    mixers = [layer.mixer for layer in (*model.layers, *model.mtp_layers)]
    laws = [
        mixer.with_states("fp32").cache_law(tp=plans.tp, kv_format=force.kv).fixed_bytes
        if mixer is not None and mixer.keeps_state
        else 0.0
        for mixer in mixers
    ]
    return span.sum_of(laws) * plans.seqs


def weight_table(model: Model, facts: VllmFacts) -> WeightTable:
    """The tensors of ``model`` and what vLLM makes of them when it loads, summed once for all stages and plans."""
    padding = tuple((name, tuple(multiples)) for name, multiples in facts.expert_padding.items())
    return _weight_table(ByIdentity(model), bool(facts.mla_weight_copies), padding)


@lru_cache(maxsize=64)
def _weight_table(same: ByIdentity, copies: bool, padding: tuple[tuple[str, Any], ...]) -> WeightTable:
    """The same model is asked of again and again: by other layouts and loads, and by the remedies of each."""
    model = same.value
    assert isinstance(model, Model)
    return WeightTable.of(model, extra=absorbed_copies(model) if copies else (), expert_padding=dict(padding))


def _rope_bytes(model: Model, force: VllmInForce, facts: VllmFacts) -> float:
    """Tables of sines and cosines in the model's format (vllm/model_executor/layers/rotary_embedding, cos_sin_cache); a linearly
    scaled rotation of full attention keeps its factor as many."""
    factor = facts.linear_rope_factors.get(model.family.removesuffix("_text"), 1)
    positions = model.max_positions or force.context
    return rope_table_bytes(model, positions=positions, element_bytes=force.dtype.bits / 8, factor=factor)


def inside_bytes(stage: VllmStage) -> Any:
    """Bytes inside the budget, cache apart."""
    names = (
        "weights",
        "adapter",
        "state_cache",
        "draft_model",
        "vision",
        "activations",
        "logits",
        "workspace",
        "communication",
    )
    return sum(stage.lines[name] for name in names) + stage.lines["cuda_graphs"] * stage.graphs_inside


def fixed_pool(stage: VllmStage, options: ServeOptions) -> Any:
    """Bytes of a cache pool that the command fixes, None where it is what the budget leaves.

    A number of blocks replaces any that bytes would give (may_override_num_blocks, vllm/v1/core/kv_cache_utils.py).
    """
    blocks = options.extra.get("num-gpu-blocks-override")
    if blocks is not None:
        return stage.block_bytes * float(blocks)
    if options.kv_cache_bytes is not None:
        return np.full_like(stage.block_bytes, float(options.kv_cache_bytes))
    return None
