"""A plan written as the ``lmdeploy serve api_server`` command that runs it."""

from __future__ import annotations

from typing import Any

from trilemma.engines.launch import check_model_word
from trilemma.engines.lmdeploy.facts import policy_of
from trilemma.engines.lmdeploy.flags import table
from trilemma.engines.writing import degrees, served_pool, settings_of, stated, trusted, words
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan

_METHODS = {"mtp": "deepseek_mtp", "eagle3": "eagle3"}


def write(*, model: str, plan: Plan) -> list[str]:
    """``["lmdeploy", "serve", "api_server", model, flag, value, …]`` for a plan of one pool. Raises `InputError`."""
    pool = served_pool(plan, engine="lmdeploy", shown="lmdeploy serve")
    options, ranks = pool.options, degrees(plan)
    if max(ranks["pp"], ranks["dcp"]) > 1:
        raise InputError("LMDeploy cuts a model by tensors and experts (--tp, --dp, --ep), not by layers")
    policy = policy_of(options.kv_dtype)
    pairs: dict[str, Any] = {
        **{name: ranks[name] if ranks[name] > 1 else None for name in ("tp", "dp", "ep", "cp")},
        "session-len": options.context,
        "max-batch-size": stated(options.max_seqs, "max_seqs"),
        "max-prefill-token-num": stated(options.max_batched_tokens, "max_batched_tokens"),
        "cache-max-entry-count": options.memory_fraction,
        "cache-block-seq-len": options.block_size,
        "quant-policy": policy,
        "dtype": {"bf16": "bfloat16", "fp16": "float16"}.get(options.dtype or "", options.dtype),
        "enable-prefix-caching": options.prefix_caching or None,
        "eager-mode": options.eager or None,
        "language-model-only": options.text_only or None,
    }
    if pool.draft is not None:
        if pool.draft.method not in _METHODS:
            raise InputError(
                f"LMDeploy drafts by {', '.join(_METHODS)}; {shorten(pool.draft.method)!r} is none of them"
            )
        pairs |= {"speculative-algorithm": _METHODS[pool.draft.method], "speculative-draft-model": pool.draft.model,
                  "speculative-num-draft-tokens": pool.draft.tokens}  # fmt: skip
    settings = settings_of({**pairs, **options.extra}, table(), plan.engine.version)
    return ["lmdeploy", "serve", "api_server", check_model_word(model), *words([*settings, *trusted(model, table())])]
