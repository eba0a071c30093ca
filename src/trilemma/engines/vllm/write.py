"""A plan to the `vllm serve` command that runs it: only what is decided, in a fixed order, in flags of its version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.flags import Flag, FlagTable
from trilemma.engines.launch import check_model_word
from trilemma.engines.vllm.capture_sizes import capture_settings
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.read import VARIABLES
from trilemma.engines.vllm.speculation import draft_configuration
from trilemma.engines.writing import degrees, no_flag, served_pool, settings_of, stated, trusted, words
from trilemma.errors import InputError
from trilemma.plans import Plan, Pool, ServeOptions
from trilemma.quantities import GIB

#: Keys of ``extra`` that are written together with an option of the plan.
_JOINED = ("speculative-config", "compilation-config", "limit-mm-per-prompt", "max-model-len", "enable-expert-parallel")

#: What the engine calls formats of its cache that are called otherwise here.
_CACHE_WORDS = {"bf16": "bfloat16", "fp16": "float16"}


def write(*, model: str, plan: Plan) -> list[str]:
    """``["vllm", "serve", model, flag, value, …]`` for a plan of one pool.

    `trilemma.engines.vllm.read.read` gives the same plan back for what the command line can say (it has no place for
    the engine version, a pool's role and a draft's assumed acceptance). Raises `InputError` for a plan that vLLM cannot
    run, a table of plans, or an option that the plan's version has no flag for.
    """
    return ["vllm", "serve", check_model_word(model), *words([*settings(plan), *trusted(model, table())])]


def settings(plan: Plan) -> list[tuple[Flag, Any]]:
    """The flags that state the plan with their values, in the order written. Raises `InputError` as `write` does."""
    pool, known = served_pool(plan, engine="vllm", shown="vLLM"), table()
    extra = {name: value for name, value in pool.options.extra.items() if name not in (*_JOINED, *VARIABLES)}
    for name in extra:
        if name in known.flags and known.flags[name].field not in ("extra", "server"):
            raise no_flag(known, name)
    options = _options(pool.options, known, known.at(plan.engine.version))
    pairs = {**_layout(degrees(plan), pool.options), **options, **_draft(pool), **extra}
    return settings_of(pairs, known, plan.engine.version)


def _layout(ranks: Mapping[str, int], options: ServeOptions) -> dict[str, Any]:
    pairs: dict[str, Any] = {"tensor-parallel-size": ranks["tp"]} if ranks["tp"] > 1 else {}
    for name, flag in (
        ("pp", "pipeline-parallel-size"),
        ("dp", "data-parallel-size"),
        ("cp", "prefill-context-parallel-size"),
        ("dcp", "decode-context-parallel-size"),
    ):
        if ranks[name] > 1:
            pairs[flag] = ranks[name]
    group = ranks["tp"] * ranks["dp"] * ranks["cp"]
    if ranks["ep"] not in (1, group):
        raise InputError(
            f"vLLM spreads experts over all {group} ranks of a stage (tp · dp · cp) or none; --ep {ranks['ep']} is neither"
        )
    if ranks["ep"] > 1 or options.extra.get("enable-expert-parallel"):
        pairs["enable-expert-parallel"] = True
    return pairs


def _options(options: ServeOptions, known: FlagTable, version: tuple[int, ...]) -> dict[str, Any]:
    extra = options.extra
    context = extra.get("max-model-len") if options.context is None else options.context
    offload = options.cpu_offload_bytes / GIB if options.cpu_offload_bytes else None
    limits = extra.get("limit-mm-per-prompt", options.multimodal_limits)
    return {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "kv-cache-dtype": _CACHE_WORDS.get(options.kv_dtype or "", options.kv_dtype),
        "max-model-len": context,
        "max-num-seqs": stated(options.max_seqs, "max_seqs"),
        "max-num-batched-tokens": stated(options.max_batched_tokens, "max_batched_tokens"),
        "gpu-memory-utilization": options.memory_fraction,
        "kv-cache-memory-bytes": options.kv_cache_bytes,
        "block-size": options.block_size,
        "enable-prefix-caching": options.prefix_caching,
        "enable-chunked-prefill": options.chunked_prefill,
        "enforce-eager": options.eager or None,
        **capture_settings(options, known, version),
        "language-model-only": options.text_only or None,
        "limit-mm-per-prompt": None if limits is None else dict(limits),
        "mamba-cache-mode": options.mamba_cache_mode,
        "cpu-offload-gb": int(offload) if offload is not None and offload == int(offload) else offload,
    }


def _draft(pool: Pool) -> dict[str, Any]:
    rest = pool.options.extra.get("speculative-config") or {}
    if pool.draft is None:
        return {}
    return {"speculative-config": draft_configuration(pool.draft, rest)}
