"""TensorRT-LLM's memory at start-up: a share of what is free after weights, a profiled pass and its buffers.

``pool = fraction · (free − peak)`` with the peak of weights, one pass over the largest batch and what lies outside PyTorch
(tensorrt_llm/_torch/pyexecutor/_util.py, KvCacheCreator._cal_max_memory). ``memory_fraction`` is
``--kv_cache_free_gpu_memory_fraction``: the share of what is free after loading and profiling that the pool takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trilemma.engines.launch import share_of_card
from trilemma.engines.loading import computing_format, in_dtype
from trilemma.engines.rank_memory import half_widths, pool_unknown
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
from trilemma.engines.table import NOT_RUN, BroadcastPlans
from trilemma.engines.tensorrt_llm.facts import for_version
from trilemma.engines.tensorrt_llm.stage import TensorrtLlmSettled, TensorrtLlmStage, is_built, stages, untied
from trilemma.errors import InputError, PlanWarning, UnknownName
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model
from trilemma.plans import ServeOptions
from trilemma.quantities import GIB, ceil_div

#: Lines that the profiled peak holds, all but the pool.
PEAK = ("weights", "draft_model", "vision", "activations", "logits", "cuda_graphs", "workspace")


def settle(asked: Asked) -> TensorrtLlmSettled:
    """Options in force. Raises `InputError` for shares and layouts that the engine does not take."""
    facts, options, layout = (
        for_version(asked.version, date=asked.date, changed=asked.changed),
        asked.options,
        asked.layout,
    )
    card = CardMemory.of(asked.accelerator, capacity_bytes=asked.capacity_bytes, free_bytes=asked.free_bytes)
    drafting, _, notes = as_loaded(asked, {})
    dtype = computing_format(drafting.model, options)
    served = in_dtype(drafting.model, dtype)
    built = is_built(options, facts)
    if built:
        served = untied(served)
    kv = kv_format(served, options)
    fraction = facts.memory_fraction
    if options.memory_fraction is not None:
        fraction = share_of_card(options.memory_fraction, shown="--kv_cache_free_gpu_memory_fraction")
    plans = BroadcastPlans.of(
        layout,
        max_seqs=facts.max_batch_size if options.max_seqs is None else options.max_seqs,
        max_batched_tokens=facts.max_num_tokens if options.max_batched_tokens is None else options.max_batched_tokens,
    )
    shared = (np.asarray(plans.ep) > 1) & (plans.dp > 1) | bool(options.extra.get("enable_attention_dp"))
    beyond = plans.refused(
        shared & (plans.dp > 1) & (plans.tp > 1),
        f"--tp {layout.tp} x --dp {layout.dp}: TensorRT-LLM attends on every rank alone or on all together",
    )
    unstated = facts.coefficients["unstated"]["context"]
    return TensorrtLlmSettled(
        asked=asked, card=card, facts=facts, model=served, plans=plans,
        context=options.context or served.max_positions or unstated, kv=kv, memory_fraction=fraction, warnings=notes,
        dtype=dtype, block=options.block_size or facts.block_size, shared=shared, beyond=beyond, built=built,
        extra=len(served.mtp_layers) if drafting.has_layers else 0,
    )  # fmt: skip


def _left(settled: TensorrtLlmSettled, stage: TensorrtLlmStage) -> Any:
    """What is free of the card beside every line and files in memory that it shares with its host."""
    left = settled.card.free_bytes - sum(stage.lines[name] for name in (*PEAK, "context"))
    return left - _cached_files(settled, stage, left)


def _cached_files(settled: TensorrtLlmSettled, stage: TensorrtLlmStage, left: Any) -> Any:
    """What the host keeps of the checkpoint's files of ``left`` bytes: cudaMemGetInfo counts its cache as taken."""
    kept_free = settled.facts.coefficients["shared_memory"]["kept_free"] * settled.card.shared_bytes
    files = sum(stage.lines[name] for name in ("weights", "draft_model", "vision"))
    return np.where(settled.card.shared_bytes > 0, np.clip(left - kept_free, 0, files), 0.0)


def room(settled: TensorrtLlmSettled, found: Sequence[TensorrtLlmStage]) -> list[Any]:
    """Tokens that each stage has room for."""
    return [_left(settled, stage) / stage.rate for stage in found]


def pool(settled: TensorrtLlmSettled, stage: TensorrtLlmStage, found: Sequence[TensorrtLlmStage]) -> SizedPool:
    """Blocks of the share that the pool takes of what the tightest ``stage`` leaves, recurrent states set apart."""
    del found
    facts, plans, options, block = settled.facts, settled.plans, settled.options, settled.block
    context, fraction, rate, unused = settled.context, settled.memory_fraction, stage.rate, _left(settled, stage)
    most = unused * facts.coefficients["states"]["most_share"]
    states = np.where(unused > 0, np.minimum(plans.seqs * stage.state, most), 0.0)
    available = np.where(unused > 0, fraction * unused - states, unused)
    if options.kv_cache_bytes is not None:
        available = np.full(plans.shape, float(options.kv_cache_bytes))
    available = np.where(settled.beyond, NOT_RUN, available)
    limit = options.extra.get("kv_cache_config", {}).get("max_tokens")
    blocks = np.floor(np.maximum(available, 0) / (rate * block))
    if limit is not None:
        blocks = np.minimum(blocks, ceil_div(int(limit), block))
    tokens = blocks * block
    available = np.where(available > 0, tokens * rate, available)
    half = _half_widths(settled, stage)
    spread = _spread(settled, half, unused)
    return SizedPool(
        lines={**stage.lines, "state_cache": states, "kv_cache": np.maximum(available, 0)},
        half={**half, "kv_cache": spread},
        outside=("context",),
        inputs={"version": facts.version, "backend": facts.backend, "kv": settled.kv.name, "context": context, "block": block,
                "max_batch_size": plans.out(plans.seqs), "max_num_tokens": plans.out(plans.tokens)},
        budget_bytes=sum(stage.lines[name] for name in PEAK) + states + np.maximum(available, 0),
        available_bytes=available,
        spread_bytes=spread,
        blocks=blocks,
        block_size=block,
        tokens=tokens,
        concurrency=tokens / context,
        need_bytes=(context if options.context is not None else block) * rate,
        rate=np.where(rate > 1e-6, rate, 0.0),
        max_context=longest_request(settled, tokens),
        max_seqs=plans.out(plans.seqs),
        max_batched_tokens=plans.out(plans.tokens),
        load_peak_bytes=sum(stage.lines[name] for name in ("weights", "draft_model", "vision", "context")),
        warnings=[*_warnings(settled, tokens), *_files_told(settled, stage)],
    )  # fmt: skip


def _half_widths(settled: TensorrtLlmSettled, stage: TensorrtLlmStage) -> dict[str, Any]:
    memory, known = settled.facts.coefficients, settled.facts.known
    half = half_widths(settled.model, stage.lines, memory, known=known)
    if not known:
        # Without a version the backend is not known either: engines built ahead hold more.
        data = memory["non_torch_gib"]
        half["workspace"] = np.hypot(half["workspace"], (data["built"] - data["alone"]) * GIB)
    return half


def _spread(settled: TensorrtLlmSettled, half: dict[str, Any], unused: Any) -> Any:
    """Half-width (90 %) of the bytes of the pool."""
    memory = settled.facts.coefficients
    return settled.memory_fraction * root_of_squares(
        *(half.get(name, 0.0) for name in (*PEAK, "context")),
        settled.card.uncertain_bytes,
        memory["spread"]["unified_memory_relative"] * settled.card.shared_bytes,
        pool_unknown(settled.model, memory, unused),
    )


def _warnings(settled: TensorrtLlmSettled, tokens: Any) -> list[PlanWarning]:
    if settled.plans.table or not 0 < float(np.max(tokens)) < settled.context:
        return []
    told = f"{int(np.max(tokens)):,} tokens, fewer than the {settled.context:,} of the longest request"
    return [PlanWarning(code="pool-below-context", message=f"the pool holds {told}")]


def _files_told(settled: TensorrtLlmSettled, stage: TensorrtLlmStage) -> list[PlanWarning]:
    left = settled.card.free_bytes - sum(stage.lines[name] for name in (*PEAK, "context"))
    cached = float(np.max(_cached_files(settled, stage, left)))
    if cached < GIB or settled.plans.table:
        return []
    message = (
        f"{cached / GIB:.1f} GiB of the checkpoint's files stay in the host's cache, which this engine takes for used memory;"
        " dropping the cache once they are loaded (echo 3 > /proc/sys/vm/drop_caches) leaves them to the pool"
    )
    return [PlanWarning(code="files-in-shared-memory", message=message)]


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


_FORMULAS = {
    "weights": Formula(words="sum over tensors of bytes · ceil(units / ranks) / units, layers of the stage"),
    "draft_model": Formula(words="layers that draft, last stage"),
    "vision": Formula(words="tensors of the vision tower, first stage"),
    "activations": Formula(words="copies · max_num_tokens · (hidden, columns / ranks, routed rows)", table="forward"),
    "logits": Formula(words="sequences that end a prompt at once · vocabulary · 4", table="logits"),
    "workspace": Formula(
        words="memory outside PyTorch, or activations of an engine built ahead", table="non_torch_gib"
    ),
    "cuda_graphs": Formula(words="fixed + sizes · layers · c + experts by the largest batch", table="graphs"),
    "context": Formula(words="CUDA context and communicators", table="context_gib"),
    "state_cache": Formula(words="requests · states of one request"),
    "kv_cache": Formula(
        words="fraction · (free − all other lines)", source="_torch/pyexecutor/_util.py, _cal_max_memory"
    ),
}
RULES = Rules(fraction_of="free after loading", formulas=_FORMULAS, settle=settle, stages=stages, room=room, pool=pool)
