"""A plan written as the ``transformers serve`` command that runs it."""

from __future__ import annotations

from typing import Any

from trilemma.engines.launch import check_model_word
from trilemma.engines.transformers_serve.flags import table
from trilemma.engines.writing import degrees, served_pool, settings_of, stated, trusted, words
from trilemma.errors import InputError
from trilemma.plans import Plan


def write(*, model: str, plan: Plan) -> list[str]:
    """``["transformers", "serve", model, flag, value, …]`` for a plan of one pool of cards in turn.

    Context, sequences and cache format have no flag: the longest request and the dtype decide them. Raises `InputError`.
    """
    options, ranks = served_pool(plan, engine="transformers-serve", shown="transformers serve").options, degrees(plan)
    if max(number for name, number in ranks.items() if name != "pp") > 1:
        raise InputError("transformers serve puts layers on cards in turn (--pp) and splits nothing else")
    tokens = options.max_batched_tokens
    pairs: dict[str, Any] = {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "cb-max-memory-percent": options.memory_fraction,
        "cb-max-batch-tokens": stated(tokens, "max_batched_tokens"),
        "cb-block-size": options.block_size,
    }
    settings = settings_of({**pairs, **options.extra}, table(), plan.engine.version)
    return ["transformers", "serve", check_model_word(model), *words([*settings, *trusted(model, table())])]
