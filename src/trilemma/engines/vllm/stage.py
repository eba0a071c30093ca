"""What one pipeline stage needs of its card, cache apart, and which stage leaves least for the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.loading import absorbed_copies
from trilemma.engines.rank_memory import Widths, buffer_bytes, context_bytes, fabric_of, graph_bytes
from trilemma.engines.table import Plans
from trilemma.engines.vllm.defaults import InForce
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.engines.vllm.groups import Grouping
from trilemma.engines.vllm.overheads import activation_peak, captured
from trilemma.hardware.accelerator import Accelerator
from trilemma.memory.stages import stage_bounds
from trilemma.memory.weights import WeightTable, rank_weights
from trilemma.models.architecture import Model
from trilemma.plans import ServeOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What one pipeline stage needs; arrays (plans,)."""

    lines: Mapping[str, Any]
    load_peak: Any
    block_bytes: Any


def stage_lines(
    name: str, model: Model, table: WeightTable, accelerator: Accelerator, plans: Plans, force: InForce, options: ServeOptions,
    facts: VllmFacts, grouping: Grouping | None,
) -> Stage:  # fmt: skip
    """The lines of one pipeline stage, cache apart."""
    depth = len(model.layers)
    start, stop = stage_bounds(depth, plans.pp, name)
    first, last = start == 0, stop == depth
    weights = rank_weights(
        table, start=start, stop=stop, first=first, last=last, tp=plans.tp, ep=plans.ep,
        expert_tp=plans.tp * plans.dp, vocab_padding=facts.vocab_padding,
    )  # fmt: skip
    memory, widths = facts.coefficients, Widths.of(model)
    fabric = fabric_of(accelerator, memory)
    peak = activation_peak(
        model, widths=widths, facts=facts, tp=plans.tp, ep=plans.ep, last=last, max_seqs=plans.seqs, tokens=plans.tokens,
        dtype_bytes=force.dtype.bits / 8, context=force.context, text_only=options.text_only,
        compute_capability=accelerator.compute_capability,
    )  # fmt: skip
    workspace, communication = buffer_bytes(memory, ranks=plans.tp, fabric=fabric)
    graphs, largest = captured(
        facts, max_seqs=plans.seqs, tokens=plans.tokens, draft_tokens=force.draft_tokens, sizes=options.cuda_graph_sizes,
        eager=options.eager,
    )  # fmt: skip
    graphs = graph_bytes(
        widths, memory, layers=stop - start, graphs=graphs, largest=largest, tp=plans.tp, drafts=force.drafts_by_layers
    )
    skipped = facts.second_runner_skips_graphs and not widths.expert_rows and not model.is_hybrid
    inside = facts.graphs_in_budget and not skipped
    resident = np.maximum(weights.text + _rope_bytes(model, force, facts) - options.cpu_offload_bytes, 0)
    extra = len(model.mtp_layers) if force.drafts_by_layers else 0
    lines = {
        "weights": resident,
        "draft_model": weights.mtp if force.drafts_by_layers else np.zeros(plans.shape),
        "vision": np.zeros(plans.shape) if options.text_only else weights.vision + np.zeros(plans.shape),
        "activations": peak.activations,
        "logits": peak.logits,
        "workspace": workspace,
        "communication": communication,
        "cuda_graphs": graphs * (memory["graphs"]["charged_share"] if inside else 1.0),
        "graphs_inside": np.full(plans.shape, inside),
        "context": context_bytes(memory, ranks=plans.tp, fabric=fabric),
    }
    lines = {key: np.broadcast_to(value, plans.shape) for key, value in lines.items()}
    loaded = lines["weights"] + lines["draft_model"] + lines["vision"]
    block = 1.0
    if grouping is not None:
        block = grouping.block_bytes(start=start, stop=np.where(last, stop + extra, stop), depth=depth + extra)
    return Stage(
        lines=lines, load_peak=loaded + lines["context"] + lines["communication"],
        block_bytes=np.broadcast_to(block, plans.shape),
    )  # fmt: skip


def weight_table(model: Model, facts: VllmFacts) -> WeightTable:
    """The tensors of ``model`` and what vLLM makes of them when it loads, summed once for all stages and plans."""
    extra = absorbed_copies(model) if facts.mla_weight_copies else ()
    return WeightTable.of(model, extra=extra, expert_padding=facts.expert_padding)


def _rope_bytes(model: Model, force: InForce, facts: VllmFacts) -> float:
    """Tables of sines and cosines, one for each kind of rotated heads, shared by all layers of a rank.

    ``positions · rotated width`` elements (vllm/model_executor/layers/rotary_embedding, cos_sin_cache); a linearly scaled
    rotation of full attention keeps its factor as many.
    """
    kinds = {
        (mixer.rotary_width, mixer.look_back is not None and mixer.look_back[0] == "window")
        for mixer in model.mixers
        if mixer.rotary_width
    }
    factor = facts.linear_rope_factors.get(model.family.removesuffix("_text"), 1)
    rows = sum(width * (1 if windowed else factor) for width, windowed in kinds)
    return (model.max_positions or force.context) * rows * force.dtype.bits / 8


def inside_bytes(stage: Stage) -> Any:
    """Bytes inside the budget, cache apart."""
    names = ("weights", "draft_model", "vision", "activations", "logits", "workspace", "communication")
    return sum(stage.lines[name] for name in names) + stage.lines["cuda_graphs"] * stage.lines["graphs_inside"]


def fixed_pool(stage: Stage, options: ServeOptions) -> Any:
    """Bytes of a cache pool that the command fixes, None where it is what the budget leaves.

    A number of blocks replaces any that bytes would give (may_override_num_blocks, vllm/v1/core/kv_cache_utils.py).
    """
    blocks = options.extra.get("num-gpu-blocks-override")
    if blocks is not None:
        return stage.block_bytes * float(blocks)
    if options.kv_cache_bytes is not None:
        return np.full_like(stage.block_bytes, float(options.kv_cache_bytes))
    return None


def tightest(stages: list[Stage], budget: Any, grouping: Grouping | None, options: ServeOptions) -> tuple[Stage, Any]:
    """For every plan the stage with fewest blocks, as one stage, with the bytes that it leaves for the cache.

    Where the number of blocks is fixed, the stage that needs most memory.
    """
    fixed = [fixed_pool(stage, options) for stage in stages]
    left = [budget - inside_bytes(stage) if pool is None else pool for stage, pool in zip(stages, fixed, strict=True)]
    blocks = np.stack([value / stage.block_bytes for value, stage in zip(left, stages, strict=True)])
    if "num-gpu-blocks-override" in options.extra:
        blocks = -np.stack([value + inside_bytes(stage) for value, stage in zip(left, stages, strict=True)])
    pick = np.argmin(blocks if grouping is not None else np.stack(left), axis=0)

    def choose(values: list[Any]) -> Any:
        return np.take_along_axis(np.stack(values), pick[None], axis=0)[0]

    lines = {name: choose([stage.lines[name] for stage in stages]) for name in stages[0].lines}
    loads = np.maximum.reduce([stage.load_peak for stage in stages])
    chosen = Stage(lines=lines, load_peak=loads, block_bytes=choose([stage.block_bytes for stage in stages]))
    return chosen, choose(left)
