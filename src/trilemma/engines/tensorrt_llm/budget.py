"""TensorRT-LLM's memory at start-up: a share of what is free after weights, a profiled pass and its buffers.

``pool = fraction · (free − peak)`` with the peak of weights, one pass over the largest batch and what lies outside PyTorch
(tensorrt_llm/_torch/pyexecutor/_util.py, KvCacheCreator._cal_max_memory). One path serves one plan and tables of plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp
from trilemma.engines.draft import with_draft
from trilemma.engines.launch import share_of_card
from trilemma.engines.layer_cache import LayerCache, layer_caches, summed
from trilemma.engines.loading import absorbed_copies, as_stored, computing_format, in_dtype
from trilemma.engines.rank_memory import (
    Weights,
    Widths,
    buffer_bytes,
    context_bytes,
    expert_bytes,
    fabric_of,
    forward_bytes,
    graph_bytes,
    half_widths,
    pool_unknown,
    rungs,
)
from trilemma.engines.start_up import ledger_of
from trilemma.engines.table import NOT_RUN, Plans
from trilemma.engines.tensorrt_llm.facts import TensorrtLlmFacts, for_version
from trilemma.errors import Caution, InputError, UnknownName
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.memory import memory_cautions, runtime_total
from trilemma.memory.stages import stage_bounds
from trilemma.models.architecture import Model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB, ceil_div

_UNSTATED_CONTEXT = 4096
#: Lines that the profiled peak holds, all but the pool.
PEAK = ("weights", "draft_model", "vision", "activations", "logits", "cuda_graphs", "workspace")


def start_up(
    *, model: Model, accelerator: Accelerator, layout: Layout, options: ServeOptions, draft: Draft | None = None,
    version: str | None = None, free_bytes: float | None = None, capacity_bytes: float | None = None,
    date: str | None = None,
) -> StartUp:  # fmt: skip
    """What TensorRT-LLM does with a card's memory when it starts, per GPU of the tightest rank.

    Arguments and shapes as `trilemma.engines.vllm.budget.start_up`. ``memory_fraction`` is
    ``--kv_cache_free_gpu_memory_fraction``: the share of what is free after loading and profiling that the pool takes.
    """
    facts = for_version(version, date=date)
    total = runtime_total(accelerator)
    capacity = total.interval.value if capacity_bytes is None else float(capacity_bytes)
    if capacity <= 0 or (free_bytes is not None and free_bytes < 0):
        raise InputError(f"a card of {capacity:.0f} bytes with {free_bytes} free cannot be planned for")
    free = capacity if free_bytes is None else min(capacity, free_bytes)
    stored, notes = as_stored(model, options, {})
    drafting = with_draft(stored, draft)
    dtype = computing_format(drafting.model, options)
    served = in_dtype(drafting.model, dtype)
    kv = kv_format(served, options)
    context = options.context or served.max_positions or _UNSTATED_CONTEXT
    fraction = (
        facts.memory_fraction
        if options.memory_fraction is None
        else share_of_card(options.memory_fraction, shown="--kv_cache_free_gpu_memory_fraction")
    )
    plans = Plans.of(
        layout,
        max_seqs=facts.max_batch_size if options.max_seqs is None else options.max_seqs,
        max_batched_tokens=facts.max_num_tokens if options.max_batched_tokens is None else options.max_batched_tokens,
    )
    block = options.block_size or facts.block_size
    extra = len(served.mtp_layers) if drafting.has_layers else 0
    weights = Weights(served, extra=absorbed_copies(served), vocab_padding=facts.vocab_padding)
    caches = layer_caches((*served.layers, *(served.mtp_layers if extra else ())), tp=plans.tp, kv_format=kv)
    shared = (np.asarray(plans.ep) > 1) & (plans.dp > 1) | bool(options.extra.get("enable_attention_dp"))
    beyond = plans.refused(
        shared & (plans.dp > 1) & (plans.tp > 1),
        f"--tp {layout.tp} x --dp {layout.dp}: TensorRT-LLM attends on every rank alone or on all together",
    )
    stages = [
        _stage(name, served, weights, caches, accelerator, plans, options, facts, shared, extra, dtype)
        for name in plans.stages
    ]
    left = [free - sum(lines[name] for name in (*PEAK, "context")) for lines, _, _ in stages]
    rates = [np.maximum(rate, 1e-9) for _, rate, _ in stages]
    pick = np.argmin(np.stack([value / rate for value, rate in zip(left, rates, strict=True)]), axis=0)

    def choose(values: list[Any]) -> Any:
        return np.take_along_axis(np.stack([np.broadcast_to(v, plans.shape) for v in values]), pick[None], axis=0)[0]

    lines = {name: choose([stage[0][name] for stage in stages]) for name in stages[0][0]}
    rate, state = choose(rates), choose([stage[2] for stage in stages])
    unused = choose(left)
    states = np.where(
        unused > 0, np.minimum(plans.seqs * state, unused * facts.coefficients["states"]["most_share"]), 0.0
    )
    pool = np.where(unused > 0, fraction * unused - states, unused)
    if options.kv_cache_bytes is not None:
        pool = np.full(plans.shape, float(options.kv_cache_bytes))
    pool = np.where(beyond, NOT_RUN, pool)
    limit = options.extra.get("kv_cache_config", {}).get("max_tokens")
    blocks = np.floor(np.maximum(pool, 0) / (rate * block))
    if limit is not None:
        blocks = np.minimum(blocks, ceil_div(int(limit), block))
    tokens = blocks * block
    pool = np.where(pool > 0, tokens * rate, pool)
    half = half_widths(served, lines, facts.coefficients, known=facts.known)
    if not facts.known:
        # Without a version the backend is not known either: engines built ahead hold more.
        data = facts.coefficients["non_torch_gib"]
        half["workspace"] = np.hypot(half["workspace"], (data["built"] - data["alone"]) * GIB)
    between = 0.0 if capacity_bytes is not None else (total.interval.high - total.interval.low) / 2
    unified = facts.coefficients["spread"]["unified_memory_relative"] * capacity if accelerator.unified_memory else 0.0
    spread = fraction * np.sqrt(
        sum(np.square(half.get(name, 0.0)) for name in (*PEAK, "context"))
        + between**2
        + unified**2
        + np.square(pool_unknown(served, facts.coefficients, unused))
    )
    stated = options.context is not None
    need = (context if stated else block) * rate
    lines["state_cache"], lines["kv_cache"] = states, np.maximum(pool, 0)
    cautions = [*facts.cautions, *notes, *drafting.cautions]
    if not plans.table and 0 < float(np.max(tokens)) < context:
        message = f"the pool holds {int(np.max(tokens)):,} tokens, fewer than the {context:,} of the longest request"
        cautions.append(Caution(code="pool-below-context", message=message))
    return StartUp(
        ledger=ledger_of(
            lines, {**half, "kv_cache": spread}, formulas=_FORMULAS, outside=("context",), out=plans.out,
            inputs={"version": facts.version, "backend": facts.backend, "kv": kv.name, "context": context, "block": block,
                    "max_batch_size": plans.out(plans.seqs), "max_num_tokens": plans.out(plans.tokens)},
        ),
        capacity_bytes=capacity,
        budget_bytes=plans.out(sum(lines[name] for name in PEAK) + states + np.maximum(pool, 0)),
        pool=KvPool(
            available_bytes=plans.out(pool),
            available_low_bytes=plans.out(pool - spread),
            available_high_bytes=plans.out(pool + spread),
            blocks=plans.out(blocks),
            block_size=block,
            tokens=plans.out(tokens),
            concurrency=plans.out(tokens / context),
            need_bytes=plans.out(need),
            bytes_per_token_per_gpu=plans.out(np.where(rate > 1e-6, rate, 0.0)),
            max_context=plans.out(np.minimum(tokens, max(context, model.max_positions or 0)).astype(np.int64)),
        ),
        memory_fraction=fraction,
        context=context,
        max_seqs=plans.out(plans.seqs),
        max_batched_tokens=plans.out(plans.tokens),
        kv_format=kv.name,
        load_peak_bytes=plans.out(sum(lines[name] for name in ("weights", "draft_model", "vision", "context"))),
        version=facts.version,
        cautions=(*cautions, *(() if capacity_bytes else memory_cautions(accelerator))),
        spread_bytes=plans.out(np.broadcast_to(spread, plans.shape)),
        free_bytes=free_bytes,
        fraction_of="free after loading",
    )  # fmt: skip


def _stage(
    name: str, model: Model, weights: Weights, caches: list[LayerCache], accelerator: Accelerator, plans: Plans,
    options: ServeOptions, facts: TensorrtLlmFacts, shared: Any, extra: int, dtype: Format,
) -> tuple[dict[str, Any], Any, Any]:  # fmt: skip
    """(lines, bytes a token, bytes of states a request) of one pipeline stage; arrays (plans,)."""
    memory, widths = facts.coefficients, Widths.of(model)
    depth = len(model.layers)
    start, stop = stage_bounds(depth, plans.pp, name)
    first, last = start == 0, stop == depth
    ranks = plans.tp * np.where(shared, plans.dp, 1)
    held = weights.on_rank(start=start, stop=stop, first=first, last=last, attention_tp=plans.tp, tp=ranks, ep=plans.ep)
    built = str(options.extra.get("backend", facts.backend)) in ("tensorrt", "trt")
    zero = np.zeros(plans.shape)
    graphs = _graph_batch(options, facts) if not built else 0
    fabric = fabric_of(accelerator, memory)
    alone, several = buffer_bytes(memory, ranks=ranks, fabric=fabric)
    if built:
        alone = np.full(np.shape(ranks), memory["non_torch_gib"]["built"] * GIB)
    row = np.asarray(plans.tokens) * (dtype.bits / 8)
    lines = {
        "weights": held.text + zero,
        "draft_model": held.mtp + zero if extra else zero,
        "vision": zero if options.text_only else held.vision + zero,
        "context": context_bytes(memory, ranks=ranks * plans.pp, fabric=fabric) + zero,
        "activations": zero if built else zero + (
            forward_bytes(widths, memory, row=row, tp=ranks) + expert_bytes(widths, memory, row=row, tp=ranks, ep=plans.ep)
        ),
        "logits": last * np.minimum(plans.seqs, memory["logits"]["most_rows"]) * float(model.vocab)
        * memory["logits"]["bytes"] + zero,
        "cuda_graphs": zero + graph_bytes(
            widths, memory, layers=stop - start, graphs=rungs(memory["graphs"]["ladder"], graphs), largest=graphs, tp=ranks,
        ),
        "workspace": alone + several + zero,
    }  # fmt: skip
    upto = np.where(last, stop + extra, stop)
    rate = summed([cache.full + cache.window for cache in caches], start, upto, plans.shape)
    state = summed([cache.state for cache in caches], start, upto, plans.shape)
    return lines, rate, state


def _graph_batch(options: ServeOptions, facts: TensorrtLlmFacts) -> int:
    if options.eager:
        return 0
    if options.cuda_graph_sizes is not None:
        return max(options.cuda_graph_sizes, default=0)
    asked = options.extra.get("cuda_graph_config", {})
    return int(asked.get("max_batch_size") or facts.graph_batch) if isinstance(asked, dict) else facts.graph_batch


def kv_format(model: Model, options: ServeOptions) -> Format:
    """``auto`` follows the checkpoint's own wish, else the model's format. Raises `InputError`."""
    asked = (options.kv_dtype or "auto").lower()
    if asked == "auto":
        if model.quantization is not None and model.quantization.kv_format:
            return catalogue.get(model.quantization.kv_format)
        return computing_format(model, options)
    try:
        return catalogue.get({"fp8": "fp8_e4m3"}.get(asked, asked))
    except UnknownName:
        raise InputError(f"a cache in {asked[:60]!r} is none of TensorRT-LLM's; use auto, fp8 or nvfp4") from None


_DATA = "data/coefficients/serving_memory"
_FORMULAS = {
    "weights": ("sum over tensors of bytes · ceil(units / ranks) / units, layers of the stage", ""),
    "draft_model": ("layers that draft, last stage", ""),
    "vision": ("tensors of the vision tower, first stage", ""),
    "activations": ("copies · max_num_tokens · (hidden, columns / ranks, routed rows)", _DATA),
    "logits": ("sequences that end a prompt at once · vocabulary · 4", _DATA),
    "workspace": ("memory outside PyTorch, or activations of an engine built ahead", _DATA),
    "cuda_graphs": ("fixed + sizes · layers · c + experts by the largest batch", _DATA),
    "context": ("CUDA context and communicators", _DATA),
    "state_cache": ("requests · states of one request", ""),
    "kv_cache": ("fraction · (free − all other lines)", "_torch/pyexecutor/_util.py, _cal_max_memory"),
}
