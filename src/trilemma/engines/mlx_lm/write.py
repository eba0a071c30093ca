"""A plan written as the ``mlx_lm.server`` command that runs it."""

from __future__ import annotations

from typing import Any

from trilemma.engines.launch import check_model_word
from trilemma.engines.mlx_lm.flags import table
from trilemma.engines.writing import degrees, served_pool, settings_of, stated, trusted, words
from trilemma.errors import InputError
from trilemma.plans import Plan


def write(*, model: str, plan: Plan) -> list[str]:
    """``["mlx_lm.server", "--model", model, flag, value, …]`` for a plan of one machine.

    The longest request has no flag of the server: it follows from the requests. Raises `InputError`.
    """
    options, ranks = served_pool(plan, engine="mlx-lm", shown="mlx_lm.server").options, degrees(plan)
    if max(ranks.values()) > 1:
        raise InputError("MLX-LM is planned on one machine here; leave --tp and --pp at 1")
    if options.kv_dtype not in (None, "auto", "bf16", "fp16"):
        raise InputError("mlx_lm.server caches in 16 bits; --kv-bits is an option of mlx_lm.generate alone")
    pairs: dict[str, Any] = {
        "decode-concurrency": stated(options.max_seqs, "max_seqs"),
        "prefill-step-size": stated(options.max_batched_tokens, "max_batched_tokens"),
    }
    settings = settings_of({**pairs, **options.extra}, table(), plan.engine.version)
    return ["mlx_lm.server", "--model", check_model_word(model), *words([*settings, *trusted(model, table())])]
