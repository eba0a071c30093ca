"""A plan to the trtllm-serve command that runs it, and the YAML that holds what no flag says."""

from __future__ import annotations

from typing import Any

from trilemma.engines.launch import check_model_word
from trilemma.engines.tensorrt_llm.flags import table
from trilemma.engines.writing import check_value, degrees, served_pool, settings_of, single, stated, trusted, words
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan

#: File name that the command names for what no flag says.
YAML = "trtllm.yaml"


def write(*, model: str, plan: Plan) -> list[str]:
    """``["trtllm-serve", model, flag, value, …]`` of one server; whole replicas run it once each.

    ``--extra_llm_api_options trtllm.yaml`` stands in it where `yaml_options` has any.
    Raises `InputError` for a plan that TensorRT-LLM cannot run or a table of plans.
    """
    return ["trtllm-serve", check_model_word(model), *arguments(plan, model)]


def arguments(plan: Plan, model: str) -> list[str]:
    """The flags alone, as words; click spells them with underscores. Raises `InputError` as `write` does."""
    found: list[str] = []
    for one in (*settings_of(_pairs(plan), table(), plan.engine.version), *trusted(model, table())):
        flag, *values = words([one])
        found += [flag.replace("-", "_").replace("__", "--", 1), *values]
    return [*found, *(("--extra_llm_api_options", YAML) if yaml_options(plan) else ())]


def yaml_options(plan: Plan) -> dict[str, Any]:
    """What the YAML states: cache format, block size, graphs, attention data parallelism, drafting and what was kept."""
    pool, options = plan.pool, plan.pool.options
    found = {name: value for name, value in options.extra.items() if name.replace("_", "-") not in table().flags}
    cache: dict[str, Any] = dict(found.get("kv_cache_config") or {})
    if options.kv_dtype is not None:
        cache["dtype"] = _cache_format(options.kv_dtype, plan.engine.version)
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


def _cache_format(name: str, version: str | None) -> str:
    word = {"fp8_e4m3": "fp8"}.get(name, name)
    check_value(table().flags["kv-cache-dtype"], word, table(), version)
    return word


def _speculative(method: str, tokens: int, model: str | None) -> dict[str, Any]:
    if method == "mtp":
        return {"decoding_type": "MTP", "num_nextn_predict_layers": tokens}
    kinds = {"eagle3": "Eagle", "eagle": "Eagle", "draft": "DraftTarget", "ngram": "NGram"}
    if method not in kinds:
        raise InputError(f"TensorRT-LLM drafts by mtp, {', '.join(kinds)}; {shorten(method)!r} is none of them")
    named = {} if model is None else {"speculative_model_dir": model}
    return {"decoding_type": kinds[method], "max_draft_len": tokens, **named}


def _pairs(plan: Plan) -> dict[str, Any]:
    options = served_pool(plan, engine="tensorrt-llm", shown="trtllm-serve").options
    tp, pp, dp, ep, cp, dcp = degrees(plan).values()
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
        "max-batch-size": stated(options.max_seqs, "max_seqs"),
        "max-num-tokens": stated(options.max_batched_tokens, "max_batched_tokens"),
        "max-seq-len": options.context,
        "kv-cache-free-gpu-memory-fraction": options.memory_fraction,
        "enable-chunked-prefill": options.chunked_prefill or None,
    }
    return pairs | {name: value for name, value in options.extra.items() if name in table().flags}


def _shares_experts(plan: Plan) -> bool:
    """Whether replicas attend alone over common experts; else each replica is a server of its own."""
    pool = plan.pool
    asked = bool(pool.options.extra.get("enable_attention_dp"))
    return single(pool.layout.dp, "dp") > 1 and (asked or single(pool.layout.ep, "ep") > 1)
