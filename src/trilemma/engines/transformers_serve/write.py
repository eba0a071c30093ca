"""A plan written as the ``transformers serve`` command that runs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.commands.flags import words_of
from trilemma.engines import canonical
from trilemma.engines.launch import check_model_word
from trilemma.engines.transformers_serve.flags import table
from trilemma.errors import InputError, shorten
from trilemma.plans import Plan


def write(*, model: str, plan: Plan) -> list[str]:
    """``["transformers", "serve", model, flag, value, …]`` for a plan of one pool of cards in turn.

    Context, sequences and cache format have no flag: the longest request and the dtype decide them. Raises `InputError`.
    """
    if canonical(plan.engine.name) != "transformers-serve":
        raise InputError(f"the plan is for {shorten(plan.engine.name)}; this writes plans whose engine is transformers")
    pool, options = plan.pool, plan.pool.options
    degrees = [_whole(getattr(pool.layout, name)) for name in ("tp", "dp", "ep", "cp", "dcp")]
    if max(degrees) > 1:
        raise InputError("transformers serve puts layers on cards in turn (--pp) and splits nothing else")
    pairs: dict[str, Any] = {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "cb-max-memory-percent": options.memory_fraction,
        "cb-max-batch-tokens": None if options.max_batched_tokens is None else _whole(options.max_batched_tokens),
        "cb-block-size": options.block_size,
    }
    pairs |= dict(options.extra)
    words = ["transformers", "serve", check_model_word(model)]
    for name, value in pairs.items():
        if value is None:
            continue
        flag = table().flags.get(name)
        if flag is None:
            raise InputError(
                f"transformers serve has no flag --{shorten(name)}; remove it from the plan's extra options"
            )
        words += words_of(flag, value)
    return words


def _whole(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.ndim:
        raise InputError("the plan is a table of plans; write takes one plan")
    return int(value)
