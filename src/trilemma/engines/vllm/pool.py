"""From bytes for the cache to blocks, tokens, concurrency and the longest request, as vLLM counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.vllm.facts import VllmFacts
from trilemma.engines.vllm.groups import Grouping
from trilemma.quantities import Numbers

#: Longest context tried where neither the model nor the user bounds it.
_LONGEST = 2**24


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolCount:
    """What a pool of some bytes holds; scalars or arrays (plans,). ``need_blocks`` serve one request of full context."""

    blocks: Any
    need_blocks: Any
    tokens: Any
    concurrency: Any
    max_context: Any


def count_pool(
    grouping: Grouping | None, *, available_bytes: Any, block_bytes: Any, context: int, longest: int | None,
    max_batched_tokens: Numbers, dcp: Numbers, facts: VllmFacts, checked_block: Any,
) -> PoolCount:  # fmt: skip
    """Blocks are bytes over the bytes of a block, rounded down; everything printed follows from them.

    Printed tokens are ``blocks // groups · block · dcp`` in older versions, ``int(concurrency · context)`` since 0.21
    (vllm/v1/core/kv_cache_utils.py). ``longest`` bounds the search for the longest request, whose blocks take ``checked_block``
    bytes each where the engine checks them.
    """
    if grouping is None:
        endless = np.full(np.shape(available_bytes), float(longest or context))
        return PoolCount(blocks=np.ones_like(endless), need_blocks=np.zeros_like(endless), tokens=endless,
                         concurrency=np.full(np.shape(available_bytes), np.inf), max_context=endless)  # fmt: skip
    in_flight = np.asarray(max_batched_tokens) * facts.in_flight_batches
    blocks = np.maximum(np.asarray(available_bytes) // block_bytes, 0)
    need = grouping.needed(tokens=np.asarray(context), in_flight=in_flight, dcp=dcp)
    concurrency = blocks / np.maximum(need, 1)
    if facts.tokens_printed == "concurrency":
        tokens = np.floor(concurrency * context)
    else:
        tables = 1 if grouping.summed else len(grouping.groups)
        tokens = blocks // tables * grouping.token_block * dcp
    top = max(context, longest or 0) or _LONGEST
    checked = np.maximum(np.asarray(available_bytes) // checked_block, 0)
    fit = _longest(grouping, blocks=checked, in_flight=in_flight, dcp=dcp, top=top)
    return PoolCount(blocks=blocks, need_blocks=need, tokens=tokens, concurrency=concurrency, max_context=fit)


def _longest(grouping: Grouping, *, blocks: Any, in_flight: Any, dcp: Numbers, top: int) -> Any:
    """The longest request up to ``top`` that ``blocks`` serve, by bisection (needs never fall with length)."""
    low = np.zeros(np.broadcast_shapes(np.shape(blocks), np.shape(in_flight), np.shape(dcp)), dtype=np.int64)
    high = np.full_like(low, top)
    for _ in range(int(top).bit_length() + 1):
        middle = (low + high + 1) // 2
        fits = grouping.needed(tokens=middle, in_flight=in_flight, dcp=dcp) <= blocks
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle - 1)
    return low
