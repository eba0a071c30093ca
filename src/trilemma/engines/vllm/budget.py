"""vLLM's memory at start-up: what it gives itself, what goes in, and the cache pool that is left.

``KV = fraction · total − weights − activation peak − non-torch [− CUDA graphs since 0.21]`` on the tightest rank
(vllm/v1/worker/gpu_worker.py, determine_available_memory). One path serves a single plan and tables of plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp
from trilemma.engines.vllm import overheads
from trilemma.engines.vllm.defaults import InForce, in_dtype, in_force
from trilemma.engines.vllm.facts import VllmFacts, for_version
from trilemma.engines.vllm.groups import Grouping, group_pages
from trilemma.engines.vllm.pages import PageRules, layer_pages
from trilemma.engines.vllm.pool import count_pool
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import memory_cautions, runtime_total
from trilemma.memory.ledger import Ledger, Line
from trilemma.memory.stages import stage_bounds
from trilemma.memory.weights import WeightTable, rank_weights
from trilemma.models.architecture import LatentAttention, Model, RecurrentState, SoftmaxAttention, Tensor
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB, Numbers

#: Cards whose fast link joins at least this many get all-reduce workspaces; bridges of two do not.
_SWITCHED = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stage:
    """What one pipeline stage needs; arrays (plans,)."""

    lines: Mapping[str, Any]
    load_peak: Any
    block_bytes: Any


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
    total = runtime_total(accelerator)
    capacity = total.interval.value if capacity_bytes is None else float(capacity_bytes)
    if capacity <= 0 or (free_bytes is not None and free_bytes < 0):
        raise InputError(f"a card of {capacity:.0f} bytes with {free_bytes} free cannot be planned for")
    force = in_force(model, options, draft, facts, capacity_bytes=capacity, card=accelerator.id)
    served = in_dtype(model, force.dtype)
    plans = _Plans.of(layout, force)
    grouping = _grouping(served, force, options, facts, plans.tp)
    stages = [_stage(name, served, accelerator, plans, force, options, facts, grouping) for name in plans.stages]
    budget = np.full(plans.shape, capacity * force.memory_fraction)
    chosen, available = _tightest(stages, budget, grouping, options)
    held_by_others = _held_by_others(capacity, free_bytes, chosen, facts)
    available = available - held_by_others
    count = count_pool(
        grouping, available_bytes=available, block_bytes=chosen.block_bytes, context=force.context,
        longest=model.max_positions, max_batched_tokens=plans.tokens, dcp=plans.dcp, facts=facts,
    )  # fmt: skip
    spread = _spread(
        chosen, facts, capacity if capacity_bytes else 0.0, total.interval.high - total.interval.low, force
    )
    need = count.need_blocks * chosen.block_bytes
    block = grouping.token_block if grouping is not None else 1
    pool = KvPool(
        available_bytes=_out(available, plans),
        available_low_bytes=_out(available - spread, plans),
        available_high_bytes=_out(available + spread, plans),
        blocks=_out(count.blocks, plans),
        block_size=_out(np.broadcast_to(block, plans.shape), plans),
        tokens=_out(count.tokens, plans),
        concurrency=_out(count.concurrency, plans),
        need_bytes=_out(need, plans),
        bytes_per_token_per_gpu=_out(_rate(grouping, chosen.block_bytes, plans.dcp), plans),
        max_context=_out(count.max_context, plans),
        least_blocks=_out(_least_blocks(grouping, plans, options, draft, facts), plans),
    )
    return StartUp(
        ledger=_ledger(chosen, np.maximum(available, 0), facts, plans, force),
        capacity_bytes=capacity,
        budget_bytes=_out(budget, plans),
        pool=pool,
        memory_fraction=force.memory_fraction,
        context=force.context,
        max_seqs=force.max_seqs,
        max_batched_tokens=force.max_batched_tokens,
        kv_format=force.kv.name,
        load_peak_bytes=_out(chosen.load_peak, plans),
        version=facts.version,
        cautions=(*facts.cautions, *force.cautions, *(() if capacity_bytes else memory_cautions(accelerator))),
        spread_bytes=_out(np.broadcast_to(spread, plans.shape), plans),
        free_bytes=free_bytes,
        budget_checked_at_start=facts.budget_checked_at_start,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plans:
    """Layouts and batch sizes broadcast to one shape; ``table`` says whether the caller gave arrays."""

    tp: Any
    pp: Any
    dp: Any
    ep: Any
    dcp: Any
    seqs: Any
    tokens: Any
    shape: tuple[int, ...]
    table: bool

    @classmethod
    def of(cls, layout: Layout, force: InForce) -> _Plans:
        given = (layout.tp, layout.pp, layout.dp, layout.ep, layout.dcp, force.max_seqs, force.max_batched_tokens)
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value)) for value in given))
        tp, pp, dp, ep, dcp, seqs, tokens = arrays
        table = any(isinstance(value, np.ndarray) and value.ndim for value in given)
        return cls(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, seqs=seqs, tokens=tokens, shape=tp.shape, table=table)

    @property
    def stages(self) -> tuple[str, ...]:
        if np.all(self.pp == 1):
            return ("first",)
        return ("first", "last") if np.all(self.pp < 3) else ("first", "middle", "last")


def _out(value: Any, plans: _Plans) -> Any:
    """An array for a table, a plain number for a single plan."""
    if plans.table:
        return np.asarray(value)
    number = np.asarray(value).reshape(-1)[0]
    return int(number) if float(number).is_integer() and abs(float(number)) < 2**62 else float(number)


def _grouping(model: Model, force: InForce, options: ServeOptions, facts: VllmFacts, tp: Any) -> Grouping | None:
    """The cache groups of all layers, MTP layers among them where they draft."""
    rules = PageRules(
        kv=force.kv,
        block=options.block_size or facts.block_size,
        latent_block=options.block_size or facts.mla_block_size,
        compressed_block=options.block_size or facts.compressed_block_size,
        windows_kept=facts.hybrid_groups and not options.extra.get("disable-hybrid-kv-cache-manager"),
        chunks_kept=facts.chunked_attention_groups and not options.extra.get("disable-hybrid-kv-cache-manager"),
        draft_tokens=force.draft_tokens,
        state_mode=force.state_mode,
    )
    layers = (*model.layers, *(model.mtp_layers if force.uses_mtp else ()))
    return group_pages(
        layer_pages(layers, tp=tp, rules=rules), ratio=facts.group_ratio, state_alignment=facts.state_block_alignment,
        least_block=options.block_size or facts.block_size, packed=facts.packed_compressed,
    )  # fmt: skip


def _stage(
    name: str, model: Model, accelerator: Accelerator, plans: _Plans, force: InForce, options: ServeOptions,
    facts: VllmFacts, grouping: Grouping | None,
) -> _Stage:  # fmt: skip
    """The lines of one pipeline stage, cache apart."""
    depth = len(model.layers)
    start, stop = stage_bounds(depth, plans.pp, name)
    first, last = start == 0, stop == depth
    weights = rank_weights(
        _table(model, facts), start=start, stop=stop, first=first, last=last, tp=plans.tp, ep=plans.ep,
        expert_tp=plans.tp * plans.dp, vocab_padding=facts.vocab_padding,
    )  # fmt: skip
    widths = overheads.Widths.of(model)
    linked = accelerator.link is not None and accelerator.link.domain >= _SWITCHED
    dtype_bytes = force.dtype.bits / 8
    peak = overheads.activation_peak(
        model, widths=widths, facts=facts, tp=plans.tp, ep=plans.ep, last=last, max_seqs=plans.seqs, tokens=plans.tokens,
        dtype_bytes=dtype_bytes, context=force.context, text_only=options.text_only,
    )  # fmt: skip
    outside = overheads.buffers(facts=facts, tp=plans.tp, linked=linked)
    graphs = overheads.graph_bytes(
        widths=widths, facts=facts, layers=stop - start, tp=plans.tp, max_seqs=plans.seqs, tokens=plans.tokens,
        draft_tokens=force.draft_tokens, sizes=options.cuda_graph_sizes, eager=options.eager,
    )  # fmt: skip
    skipped = facts.second_runner_skips_graphs and not widths.expert_layers and not model.is_hybrid
    inside = facts.graphs_in_budget and not skipped
    resident = np.maximum(weights.text + _rope_bytes(model, force) - options.cpu_offload_bytes, 0)
    extra = len(model.mtp_layers) if force.uses_mtp else 0
    lines = {
        "weights": resident,
        "draft_model": weights.mtp if force.uses_mtp else np.zeros(plans.shape),
        "vision": np.zeros(plans.shape) if options.text_only else weights.vision + np.zeros(plans.shape),
        "activations": peak.activations,
        "logits": peak.logits,
        "workspace": outside.workspace,
        "communication": outside.communication,
        "cuda_graphs": graphs * (overheads.charged_share() if inside else 1.0),
        "graphs_inside": np.full(plans.shape, inside),
        "context": overheads.context_bytes(tp=plans.tp, linked=linked),
    }
    lines = {key: np.broadcast_to(value, plans.shape) for key, value in lines.items()}
    loaded = lines["weights"] + lines["draft_model"] + lines["vision"]
    block = 1.0
    if grouping is not None:
        block = grouping.block_bytes(start=start, stop=np.where(last, stop + extra, stop), depth=depth + extra)
    return _Stage(
        lines=lines, load_peak=loaded + lines["context"] + lines["communication"],
        block_bytes=np.broadcast_to(block, plans.shape),
    )  # fmt: skip


def _table(model: Model, facts: VllmFacts) -> WeightTable:
    extra = _latent_copies(model) if facts.mla_weight_copies else ()
    return WeightTable.of(model, extra=extra, expert_padding=facts.expert_padding)


def _rope_bytes(model: Model, force: InForce) -> float:
    """Tables of sines and cosines, one for each width of rotated heads, shared by all layers of a rank.

    ``max positions · rotated width`` elements (vllm/model_executor/layers/rotary_embedding, cos_sin_cache).
    """
    widths = {
        mixer.k_dim if isinstance(mixer, SoftmaxAttention) else mixer.rope_dim
        for mixer in model.mixers
        if not isinstance(mixer, RecurrentState)
    }
    return (model.max_positions or force.context) * sum(widths) * force.dtype.bits / 8


def _latent_copies(model: Model) -> list[Tensor]:
    """16-bit copies of quantised latent up-projections, which decode multiplies into queries and outputs.

    vllm/model_executor/layers/attention/mla_attention.py, process_weights_after_loading: views where the matrix is 16-bit.
    """
    latent = {layer.index for layer in model.layers if isinstance(layer.mixer, LatentAttention)}
    wide = catalogue.get("bf16")
    return [
        replace(tensor, name=f"{tensor.name}.absorbed", format=wide)
        for tensor in model.tensors
        if tensor.role == "mla.kv_b" and tensor.layer in latent and tensor.format.bits < 16
    ]


def _inside(stage: _Stage) -> Any:
    """Bytes inside the budget, cache apart."""
    names = ("weights", "draft_model", "vision", "activations", "logits", "workspace", "communication")
    return sum(stage.lines[name] for name in names) + stage.lines["cuda_graphs"] * stage.lines["graphs_inside"]


def _tightest(
    stages: list[_Stage], budget: Any, grouping: Grouping | None, options: ServeOptions
) -> tuple[_Stage, Any]:
    """For every plan the stage with fewest blocks, as one stage, with the bytes that it leaves for the cache."""
    left = [budget - _inside(stage) for stage in stages]
    if options.kv_cache_bytes is not None:
        left = [np.full_like(value, float(options.kv_cache_bytes)) for value in left]
    blocks = np.stack([value / stage.block_bytes for value, stage in zip(left, stages, strict=True)])
    pick = np.argmin(blocks if grouping is not None else np.stack(left), axis=0)

    def choose(values: list[Any]) -> Any:
        return np.take_along_axis(np.stack(values), pick[None], axis=0)[0]

    lines = {name: choose([stage.lines[name] for stage in stages]) for name in stages[0].lines}
    loads = np.maximum.reduce([stage.load_peak for stage in stages])
    chosen = _Stage(lines=lines, load_peak=loads, block_bytes=choose([stage.block_bytes for stage in stages]))
    return chosen, choose(left)


def _held_by_others(capacity: float, free_bytes: float | None, stage: _Stage, facts: VllmFacts) -> Any:
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
    grouping: Grouping | None, plans: _Plans, options: ServeOptions, draft: Draft | None, facts: VllmFacts
) -> Any:
    """Blocks without which graphs of recurrent models are refused: one state for each sequence."""
    states = grouping is not None and any(group.pages.rule == "state" for group in grouping.groups)
    if not states or not facts.state_block_check or options.eager or draft is not None:
        return np.zeros(plans.shape)
    return plans.seqs


def _widths(stage: _Stage, facts: VllmFacts) -> dict[str, Any]:
    """Half-widths (90 %) of every line, in bytes."""
    data = overheads.spread()
    factor = 1.0 if facts.known else data["unknown_version_factor"]
    loaded = stage.lines["weights"]
    peak = stage.lines["activations"] + stage.lines["logits"]
    return {
        "weights": data["weights_relative"] * loaded,
        "draft_model": 0.1 * stage.lines["draft_model"],
        "vision": 0.1 * stage.lines["vision"],
        "activations": factor * np.hypot(data["activations_gib"] * GIB, data["activations_relative"] * peak),
        "logits": 0.1 * stage.lines["logits"],
        "workspace": np.full(np.shape(loaded), factor * data["non_torch_gib"] * GIB),
        "communication": 0.5 * stage.lines["communication"],
        "cuda_graphs": factor * data["graphs_relative"] * stage.lines["cuda_graphs"],
        "context": 0.5 * stage.lines["context"],
    }


def _spread(stage: _Stage, facts: VllmFacts, given: float, between: float, force: InForce) -> Any:
    """Half-width (90 %) of the bytes left for the cache: the lines' own, taken as independent, and the card's total."""
    widths = _widths(stage, facts)
    names = [name for name in widths if name != "context"]
    inside = np.where(stage.lines["graphs_inside"], 1.0, 0.0)
    parts = [widths[name] * (inside if name == "cuda_graphs" else 1.0) for name in names]
    total = 0.0 if given else between / 2 * force.memory_fraction
    return np.sqrt(sum(np.square(part) for part in parts) + total**2)


_FORMULAS = {
    "weights": "sum over tensors of bytes · ceil(units / tp) / units, layers of the stage",
    "draft_model": "multi-token-prediction layers, last stage",
    "vision": "tensors of the vision tower, first stage",
    "activations": "fixed + experts + max(sampler, forward + encoder) − logits",
    "logits": "sequences · vocabulary · bytes per logit in the sampler's profiling run",
    "workspace": "non-torch allocations of one rank",
    "communication": "all-reduce buffers of several ranks",
    "cuda_graphs": "fixed + graphs · layers · c + buffers of the largest batch",
    "context": "CUDA context of the worker",
    "kv_cache": "fraction · total − lines inside the budget",
}
_TABLES = {
    "activations": "forward", "logits": "sampler_bytes_per_logit", "workspace": "non_torch_gib",
    "communication": "non_torch_gib", "cuda_graphs": "graphs", "context": "context_gib",
}  # fmt: skip


def _ledger(stage: _Stage, pool: Any, facts: VllmFacts, plans: _Plans, force: InForce) -> Ledger:
    widths = _widths(stage, facts)
    inputs = {
        "tp": _out(plans.tp, plans), "pp": _out(plans.pp, plans), "dp": _out(plans.dp, plans), "ep": _out(plans.ep, plans),
        "max_seqs": _out(plans.seqs, plans), "max_batched_tokens": _out(plans.tokens, plans), "version": facts.version,
    }  # fmt: skip
    lines = []
    for name in _FORMULAS:
        value = pool if name == "kv_cache" else stage.lines[name]
        if name in ("draft_model", "vision", "communication", "cuda_graphs") and not np.any(value):
            continue
        half = np.zeros(np.shape(value)) if name == "kv_cache" else widths[name]
        inside = bool(np.all(stage.lines["graphs_inside"])) if name == "cuda_graphs" else name != "context"
        source = overheads.source(_TABLES[name]) if name in _TABLES else ""
        lines.append(
            Line(
                name=name, bytes=_out(value, plans), low=_out(np.maximum(value - half, 0), plans),
                high=_out(value + half, plans), budget="inside" if inside else "outside", formula=_FORMULAS[name],
                inputs=inputs | ({"kv": force.kv.name, "context": force.context} if name == "kv_cache" else {}),
                source=source,
            )
        )  # fmt: skip
    return Ledger(lines=tuple(lines))


def shown(value: Numbers) -> float:
    """A single number of a start-up as a float, for sentences."""
    return float(np.asarray(value).reshape(-1)[0])
