"""A plan written as the ``mlx_lm.server`` command that runs it, or as ``mlx_lm.generate`` where only that has the options."""

from __future__ import annotations

import shlex
from typing import Any

from trilemma.engines.launch import check_model_word
from trilemma.engines.mlx_lm.flags import table
from trilemma.engines.writing import degrees, served_pool, settings_of, stated, trusted, words
from trilemma.errors import InputError
from trilemma.plans import Plan, ServeOptions

#: Options that the generator has and the server refuses (mlx_lm/server.py).
_GENERATOR_ALONE = ("kv-bits", "kv-group-size", "quantized-kv-start")


def write(*, model: str, plan: Plan) -> list[str]:
    """``["mlx_lm.server", "--model", model, flag, value, …]`` for a plan of one machine.

    The longest request has no flag of the server: it follows from the requests. A cache in fewer bits is the generator's, which
    answers one request. Raises `InputError`.
    """
    options = _options(plan)
    if any(options.extra.get(name) is not None for name in _GENERATOR_ALONE):
        if stated(options.max_seqs, "max_seqs") not in (None, 1):
            raise InputError(
                "mlx_lm.server caches in 16 bits, and mlx_lm.generate answers one request; take `max_seqs` 1"
            )
        return _generator(model, plan)
    pairs: dict[str, Any] = {
        "decode-concurrency": stated(options.max_seqs, "max_seqs"),
        "prefill-step-size": stated(options.max_batched_tokens, "max_batched_tokens"),
    }
    settings = settings_of({**pairs, **options.extra}, table(), plan.engine.version)
    return ["mlx_lm.server", "--model", check_model_word(model), *words([*settings, *trusted(model, table())])]


def generator(*, model: str, plan: Plan) -> dict[str, str]:
    """``generate.sh``, which answers the one request that it is given; nothing for plans of several at once."""
    if stated(plan.pool.options.max_seqs, "max_seqs") not in (None, 1):
        return {}
    command = shlex.join(_generator(model, plan))
    return {
        "generate.sh": f'#!/bin/sh\n# one answer: ./generate.sh "a question"\nset -eu\nexec {command} --prompt "$1"\n'
    }


def _generator(model: str, plan: Plan) -> list[str]:
    options = _options(plan)
    served = {"prompt-cache-size", "prompt-cache-bytes", "prompt-concurrency"}
    pairs: dict[str, Any] = {
        "max-kv-size": options.context,
        "prefill-step-size": stated(options.max_batched_tokens, "max_batched_tokens"),
        **{name: value for name, value in options.extra.items() if name not in served},
    }
    settings = settings_of(pairs, table(), plan.engine.version)
    return ["mlx_lm.generate", "--model", check_model_word(model), *words([*settings, *trusted(model, table())])]


def _options(plan: Plan) -> ServeOptions:
    options, ranks = served_pool(plan, engine="mlx-lm", shown="mlx_lm.server").options, degrees(plan)
    if max(ranks.values()) > 1:
        raise InputError("MLX-LM is planned on one machine here; leave --tp and --pp at 1")
    if options.kv_dtype not in (None, "auto", "bf16", "fp16"):
        raise InputError("mlx_lm.server caches in 16 bits; --kv-bits is an option of mlx_lm.generate alone")
    return options
