"""A plan to the `vllm serve` command that runs it: only what is decided, in a fixed order, in flags of its version."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.commands.flags import Flag, FlagTable, words_of
from trilemma.engines.launch import check_model_word
from trilemma.engines.vllm.capture_sizes import capture_settings
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.speculation import draft_configuration
from trilemma.errors import InputError, shorten
from trilemma.plans import Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB

#: Keys of ``extra`` that are written together with an option of the plan.
_JOINED = ("speculative-config", "compilation-config", "limit-mm-per-prompt", "max-model-len", "enable-expert-parallel")


def write(*, model: str, plan: Plan) -> list[str]:
    """``["vllm", "serve", model, flag, value, …]`` for a plan of one pool.

    `trilemma.engines.vllm.read.read` gives the same plan back for what the command line can say (it has no place for
    the engine version, a pool's role and a draft's assumed acceptance). Raises `InputError` for a plan that vLLM cannot
    run, a table of plans, or an option that the plan's version has no flag for.
    """
    return ["vllm", "serve", check_model_word(model), *arguments(plan)]


def arguments(plan: Plan) -> list[str]:
    """The flags alone, as words. Raises `InputError` as `write` does."""
    words: list[str] = []
    for flag, value in settings(plan):
        words += words_of(flag, value)
    for word in words:
        if any(ord(char) < 32 for char in word):
            raise InputError(f"{shorten(word)!r} holds control characters, which no command line takes")
    return words


def settings(plan: Plan) -> list[tuple[Flag, Any]]:
    """The flags that state the plan with their values, in the order written. Raises `InputError` as `write` does."""
    if plan.engine.name != "vllm":
        raise InputError(f"the plan is for {shorten(plan.engine.name)}; vLLM runs plans whose engine is vllm")
    pool = plan.pool
    if pool.role == "train":
        raise InputError("vLLM serves models and cannot run a training plan")
    known = table()
    version = known.at(plan.engine.version)
    pairs = {
        **_layout(pool.layout, pool.options),
        **_options(pool.options, known, version),
        **_draft(pool),
        **{name: value for name, value in pool.options.extra.items() if name not in _JOINED},
    }
    found = []
    for name, value in pairs.items():
        flag = known.flags.get(name)
        if flag is None or (
            name in pool.options.extra and name not in _JOINED and flag.field not in ("extra", "server")
        ):
            raise InputError(
                f"vLLM has no flag --{shorten(name)}; remove {shorten(name)!r} from the plan's extra options"
            )
        if not flag.exists_at(version):
            raise InputError(
                f"vLLM {'.'.join(map(str, version))} has no --{name}; take a version from {'.'.join(map(str, flag.since))}"
                f"{'' if flag.removed is None else ' and before ' + '.'.join(map(str, flag.removed))} or drop the option"
            )
        found.append((flag, value))
    return found


def _whole(value: Any, name: str) -> int:
    if isinstance(value, np.ndarray) and value.ndim:
        raise InputError(f"{name} holds one value per plan; write takes one plan")
    return int(value)


def _layout(layout: Layout, options: ServeOptions) -> dict[str, Any]:
    degrees = {name: _whole(getattr(layout, name), name) for name in ("tp", "pp", "dp", "ep", "cp", "dcp")}
    pairs: dict[str, Any] = {"tensor-parallel-size": degrees["tp"]} if degrees["tp"] > 1 else {}
    for name, flag in (
        ("pp", "pipeline-parallel-size"),
        ("dp", "data-parallel-size"),
        ("cp", "prefill-context-parallel-size"),
        ("dcp", "decode-context-parallel-size"),
    ):
        if degrees[name] > 1:
            pairs[flag] = degrees[name]
    group = degrees["tp"] * degrees["dp"] * degrees["cp"]
    if degrees["ep"] not in (1, group):
        raise InputError(
            f"vLLM spreads experts over all {group} ranks of a stage (tp · dp · cp) or none; --ep {degrees['ep']} is neither"
        )
    if degrees["ep"] > 1 or options.extra.get("enable-expert-parallel"):
        pairs["enable-expert-parallel"] = True
    return pairs


def _options(options: ServeOptions, known: FlagTable, version: tuple[int, ...]) -> dict[str, Any]:
    extra = options.extra
    context = extra.get("max-model-len") if options.context is None else options.context
    offload = options.cpu_offload_bytes / GIB if options.cpu_offload_bytes else None
    limits = extra.get("limit-mm-per-prompt", options.multimodal_limits)
    pairs = {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "kv-cache-dtype": options.kv_dtype,
        "max-model-len": context,
        "max-num-seqs": None if options.max_seqs is None else _whole(options.max_seqs, "max_seqs"),
        "max-num-batched-tokens": (
            None if options.max_batched_tokens is None else _whole(options.max_batched_tokens, "max_batched_tokens")
        ),
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
    return {name: value for name, value in pairs.items() if value is not None}


def _draft(pool: Pool) -> dict[str, Any]:
    rest = pool.options.extra.get("speculative-config", {})
    if pool.draft is None:
        return {}
    return {"speculative-config": draft_configuration(pool.draft, rest)}
