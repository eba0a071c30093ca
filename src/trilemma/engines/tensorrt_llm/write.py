"""A plan to the trtllm-serve command that runs it, and the YAML that holds what no flag says."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.commands.flags import words_of
from trilemma.engines import canonical
from trilemma.engines.launch import check_model_word
from trilemma.engines.tensorrt_llm.flags import table
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan

#: File name that the command names for what no flag says.
YAML = "trtllm.yaml"


def write(*, model: str, plan: Plan) -> list[str]:
    """``["trtllm-serve", model, flag, value, …]`` of one server; whole replicas run it once each.

    ``--extra_llm_api_options trtllm.yaml`` stands in it where `yaml_options` has any.
    Raises `InputError` for a plan that TensorRT-LLM cannot run or a table of plans.
    """
    return ["trtllm-serve", check_model_word(model), *arguments(plan)]


def arguments(plan: Plan) -> list[str]:
    """The flags alone, as words. Raises `InputError` as `write` does."""
    words: list[str] = []
    for name, value in _pairs(plan).items():
        flag, *values = words_of(table().flags[name], value)
        words += [flag.replace("-", "_").replace("__", "--", 1), *values]
    if yaml_options(plan):
        words += ["--extra_llm_api_options", YAML]
    for word in words:
        if any(ord(char) < 32 for char in word):
            raise InputError(f"{shorten(word)!r} holds control characters, which no command line takes")
    return words


def yaml_options(plan: Plan) -> dict[str, Any]:
    """What the YAML states: cache format, block size, graphs, attention data parallelism, drafting and what was kept."""
    pool, options = plan.pool, plan.pool.options
    found = {name: value for name, value in options.extra.items() if name.replace("_", "-") not in table().flags}
    cache: dict[str, Any] = dict(found.get("kv_cache_config") or {})
    if options.kv_dtype is not None:
        cache["dtype"] = {"fp8_e4m3": "fp8"}.get(options.kv_dtype, options.kv_dtype)
    if options.block_size is not None:
        cache["tokens_per_block"] = options.block_size
    if options.prefix_caching is not None:
        cache["enable_block_reuse"] = options.prefix_caching
    if cache:
        found["kv_cache_config"] = cache
    if options.eager:
        found["cuda_graph_config"] = None
    elif options.cuda_graph_sizes:
        found["cuda_graph_config"] = {"batch_sizes": list(options.cuda_graph_sizes), "enable_padding": True}
    if _shares_experts(plan):
        found["enable_attention_dp"] = True
    if pool.draft is not None and "speculative_config" not in found:
        found["speculative_config"] = _speculative(pool.draft.method, pool.draft.tokens, pool.draft.model)
    return found


def _speculative(method: str, tokens: int, model: str | None) -> dict[str, Any]:
    if method == "mtp":
        return {"decoding_type": "MTP", "num_nextn_predict_layers": tokens}
    kinds = {"eagle3": "Eagle", "eagle": "Eagle", "draft": "DraftTarget", "ngram": "NGram"}
    if method not in kinds:
        raise InputError(f"TensorRT-LLM drafts by mtp, {', '.join(kinds)}; {shorten(method)!r} is none of them")
    named = {} if model is None else {"speculative_model_dir": model}
    return {"decoding_type": kinds[method], "max_draft_len": tokens, **named}


def _pairs(plan: Plan) -> dict[str, Any]:
    if canonical(plan.engine.name) != "tensorrt-llm":
        raise InputError(
            f"the plan is for {shorten(plan.engine.name)}; trtllm-serve runs plans whose engine is tensorrt-llm"
        )
    pool, options, layout = plan.pool, plan.pool.options, plan.pool.layout
    if pool.role == "train":
        raise InputError("TensorRT-LLM serves models and cannot run a training plan")
    tp, pp, dp, ep, cp, dcp = (_whole(getattr(layout, name)) for name in ("tp", "pp", "dp", "ep", "cp", "dcp"))
    if dcp > 1:
        raise InputError(f"--dcp {dcp}: decode context parallelism of TensorRT-LLM is not written; leave it at 1")
    shared = _shares_experts(plan)
    if shared and dp > 1 and tp > 1:
        raise InputError(
            f"--tp {tp} x --dp {dp}: TensorRT-LLM attends on every rank alone or on all together; use one of the two"
        )
    ranks = tp * dp if shared else tp
    pairs: dict[str, Any] = {
        "tp-size": ranks if ranks > 1 else None,
        "pp-size": pp if pp > 1 else None,
        "ep-size": ep if ep > 1 else None,
        "cp-size": cp if cp > 1 else None,
        "max-batch-size": None if options.max_seqs is None else _whole(options.max_seqs),
        "max-num-tokens": None if options.max_batched_tokens is None else _whole(options.max_batched_tokens),
        "max-seq-len": options.context,
        "kv-cache-free-gpu-memory-fraction": options.memory_fraction,
        "enable-chunked-prefill": options.chunked_prefill or None,
    }
    pairs |= {name: value for name, value in options.extra.items() if name in table().flags}
    return {name: value for name, value in pairs.items() if value is not None}


def _shares_experts(plan: Plan) -> bool:
    """Whether replicas attend alone over common experts; else each replica is a server of its own."""
    pool = plan.pool
    asked = bool(pool.options.extra.get("enable_attention_dp"))
    return _whole(pool.layout.dp) > 1 and (asked or _whole(pool.layout.ep) > 1)


def _whole(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.ndim:
        raise InputError("the plan is a table of plans; write takes one plan")
    return int(value)
