"""A plan to the `sglang serve` command that runs it: only what is decided, in a fixed order, in flags of its version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.flags import Flag
from trilemma.engines.launch import check_model_word
from trilemma.engines.sglang.flags import table
from trilemma.engines.sglang.read import METHODS, VARIABLES
from trilemma.engines.writing import degrees, served_pool, settings_of, stated, trusted, words
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan, Pool, ServeOptions
from trilemma.quantities import GIB
from trilemma.versions import Version


def write(*, model: str, plan: Plan) -> list[str]:
    """``["python3", "-m", "sglang.launch_server", "--model-path", model, flag, value, …]`` for a plan of one pool.

    `trilemma.engines.sglang.read.read` gives the same plan back for what the command line can say. Raises `InputError`
    for a plan that SGLang cannot run, a table of plans, or an option that the plan's version has no flag for.
    """
    flags = [*settings(plan), *trusted(model, table())]
    return ["python3", "-m", "sglang.launch_server", "--model-path", check_model_word(model), *words(flags)]


def settings(plan: Plan) -> list[tuple[Flag, Any]]:
    """The flags that state the plan with their values, in the order written. Raises `InputError` as `write` does."""
    pool, known = served_pool(plan, engine="sglang", shown="SGLang"), table()
    options = _options(pool.options, known.at(plan.engine.version))
    layout = _layout(degrees(plan), pool.options)
    if "enable-dp-attention" in layout and "max-running-requests" in options:
        options["max-running-requests"] *= layout["dp-size"]  # there the flag counts all replicas
    pairs = {**layout, **options, **_draft(pool)}
    pairs |= {name: value for name, value in pool.options.extra.items() if name not in VARIABLES and name not in pairs}
    return settings_of(pairs, known, plan.engine.version)


def _layout(ranks: Mapping[str, int], options: ServeOptions) -> dict[str, Any]:
    """Replicas that share experts take their ranks from ``--tp-size``; whole replicas multiply it."""
    tp, pp, dp, ep, cp, dcp = ranks.values()
    if cp > 1:
        raise InputError(f"--cp {cp}: context parallelism of SGLang is not written; leave it at 1")
    shared = dp > 1 and (ep > 1 or bool(options.extra.get("enable-dp-attention")))
    together = tp * dp if shared else tp
    pairs: dict[str, Any] = {"tp-size": together} if together > 1 else {}
    pairs |= {"pp-size": pp} if pp > 1 else {}
    pairs |= {"dp-size": dp} if dp > 1 else {}
    pairs |= {"enable-dp-attention": True} if shared else {}
    pairs |= {"ep-size": ep} if ep > 1 else {}
    return pairs | ({"dcp-size": dcp} if dcp > 1 else {})


def _options(options: ServeOptions, version: Version) -> dict[str, Any]:
    offload = options.cpu_offload_bytes / GIB if options.cpu_offload_bytes else None
    sizes = None if options.cuda_graph_sizes is None else list(options.cuda_graph_sizes)
    graphs = "cuda-graph-bs-decode" if table().flags["cuda-graph-bs-decode"].exists_at(version) else "cuda-graph-bs"
    fraction = options.memory_fraction
    pairs = {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "kv-cache-dtype": "fp8_e4m3" if options.kv_dtype == "fp8" else options.kv_dtype,
        "context-length": options.context,
        "max-running-requests": stated(options.max_seqs, "max_seqs"),
        "chunked-prefill-size": stated(options.max_batched_tokens, "max_batched_tokens"),
        "mem-fraction-static": fraction,
        "page-size": options.block_size,
        "disable-radix-cache": True if options.prefix_caching is False else None,
        "disable-cuda-graph": options.eager or (True if sizes == [] else None) or None,
        graphs: sizes or None,
        "language-model-only": options.text_only or None,
        "cpu-offload-gb": int(offload) if offload is not None and offload == int(offload) else offload,
    }
    return {name: value for name, value in pairs.items() if value is not None}


def _draft(pool: Pool) -> dict[str, Any]:
    draft = pool.draft
    if draft is None:
        return {}
    theirs = {"mtp": "NEXTN", "draft": "STANDALONE"}
    if draft.method not in METHODS.values():
        known = ", ".join(dict.fromkeys(METHODS.values()))
        raise InputError(f"SGLang drafts by {known}; {shorten(draft.method)!r} is none of them")
    pairs: dict[str, Any] = {"speculative-algorithm": theirs.get(draft.method, draft.method.upper())}
    if draft.model is not None:
        pairs["speculative-draft-model-path"] = draft.model
    if draft.method == "ngram":
        return pairs | {"speculative-num-draft-tokens": draft.tokens + 1}
    return pairs | {
        "speculative-num-steps": draft.tokens,
        "speculative-eagle-topk": pool.options.extra.get("speculative-eagle-topk", 1),
        "speculative-num-draft-tokens": pool.options.extra.get("speculative-num-draft-tokens", draft.tokens + 1),
    }
