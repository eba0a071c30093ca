"""A plan to the llama-server command that runs it: only what is decided, in a fixed order, in flags of its build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.flags import Flag
from trilemma.engines.launch import check_model_word
from trilemma.engines.llama_cpp.cards import cache_format, cells_of
from trilemma.engines.llama_cpp.facts import for_version
from trilemma.engines.llama_cpp.flags import table
from trilemma.engines.writing import degrees, served_pool, settings_of, stated, words
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan, Pool, ServeOptions

_METHODS = {"draft": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp", "ngram": "ngram-simple"}


def write(*, model: str, plan: Plan) -> list[str]:
    """``["llama-server", "--model" or "--hf-repo", model, flag, value, …]`` for a plan of one pool.

    A repository that does not say that it holds GGUF files is named as the file that convert_hf_to_gguf.py makes of it.
    Raises `InputError` for a plan that llama.cpp cannot run, a table of plans, or an option that the build has no flag for.
    """
    word = check_model_word(model)
    file = word.endswith(".gguf") or word.startswith(("/", "./", "../", "~"))
    if not file and "gguf" not in word.lower():
        file, word = True, f"./{word.rpartition('/')[2]}.gguf"
    return ["llama-server", "--model" if file else "--hf-repo", word, *words(settings(plan))]


def settings(plan: Plan) -> list[tuple[Flag, Any]]:
    """The flags that state the plan with their values, in the order written. Raises `InputError` as `write` does."""
    pool = served_pool(plan, engine="llama.cpp", shown="llama-server")
    pairs = {**_layout(degrees(plan)), **_options(pool.options, plan.engine.version), **_draft(pool)}
    pairs |= {name: value for name, value in pool.options.extra.items() if name not in pairs}
    return settings_of(pairs, table(), plan.engine.version)


def _layout(ranks: Mapping[str, int]) -> dict[str, Any]:
    """Cards in turn are the engine's own way; cards that share matrices are asked for. Cards themselves are not counted."""
    tp, pp, dp, ep, cp, dcp = ranks.values()
    if max(dp, ep, cp, dcp) > 1 or (tp > 1 and pp > 1):
        raise InputError("llama.cpp splits a model by layers (--pp) or by rows (--tp), not both, and nothing else")
    return {"split-mode": "row"} if tp > 1 else {}


def _options(options: ServeOptions, version: str | None) -> dict[str, Any]:
    facts = for_version(version)
    cache_format(options.kv_dtype, "the cache format")
    slots = stated(options.max_seqs, "max_seqs")
    shared = bool(options.extra.get("kv-unified", facts.slots["shared"] and slots is None))
    number = slots or int(facts.slots["number"])
    total = None
    if options.context is not None:
        total = options.context if shared or number == 1 else cells_of(options.context, number, shared, facts)
    pairs = {
        "ctx-size": total,
        "parallel": slots,
        "ubatch-size": stated(options.max_batched_tokens, "micro-batch"),
        "cache-type-k": options.kv_dtype,
        "cache-type-v": options.extra.get("cache-type-v", options.kv_dtype),
        "n-gpu-layers": options.extra.get("n-gpu-layers", "999" if facts.layers_on_card == "none" else None),
    }
    return {name: value for name, value in pairs.items() if value is not None}


def _draft(pool: Pool) -> dict[str, Any]:
    draft = pool.draft
    if draft is None:
        return {}
    if draft.method not in _METHODS:
        raise InputError(f"llama.cpp drafts by {', '.join(_METHODS)}; {shorten(draft.method)!r} is none of them")
    pairs: dict[str, Any] = {"spec-type": _METHODS[draft.method], "spec-draft-n-max": draft.tokens}
    return pairs | ({"spec-draft-model": draft.model} if draft.model is not None else {})
