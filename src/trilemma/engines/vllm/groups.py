"""How vLLM makes one pool of blocks serve layers that cache differently.

Source: vllm/v1/core/kv_cache_utils.py (get_kv_cache_groups, unify_kv_cache_spec_page_size,
_get_kv_cache_groups_uniform_page_size, _get_kv_cache_groups_uniform_groups) and vllm/model_executor/models/config.py
(attention blocks of hybrids raised until a page holds a state).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.engines.vllm.pages import Pages
from trilemma.quantities import Numbers, ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheGroup:
    """Layers that share one block table; ``pages`` says what a block holds for each of them."""

    pages: Pages
    layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouping:
    """The groups of a model. A block of the pool costs the sum over layers where ``summed``, else the largest group.

    A summed grouping is one group of layers that always need equally many blocks, each with a page size of its own;
    ``tuple_bytes`` is a fixed cost per block instead (DeepSeek-V4's padded layer tuples).
    """

    groups: tuple[CacheGroup, ...]
    summed: bool
    tuple_bytes: float | None = None

    def block_bytes(self, *, start: Numbers, stop: Numbers, depth: int) -> Any:
        """Bytes of one pool block on a pipeline stage that holds layers ``start`` up to ``stop``."""
        totals: Any = 0.0
        for group in self.groups:
            held = _members(group.layers, depth)
            count = held[np.asarray(stop)] - held[np.asarray(start)]
            cost = count * group.pages.page_bytes
            totals = totals + cost if self.summed else np.maximum(totals, cost)
        if self.tuple_bytes is not None:
            share = (np.asarray(stop) - np.asarray(start)) / max(depth, 1)
            return np.maximum(np.ceil(self.tuple_bytes * share), 1)
        return np.maximum(totals, 1)

    def needed(self, *, tokens: Any, in_flight: Numbers, dcp: Numbers) -> Any:
        """Pool blocks that one request of ``tokens`` takes."""
        kinds = {id(group.pages): group.pages for group in self.groups}.values()
        counts = [1 if self.summed else sum(group.pages is kind for group in self.groups) for kind in kinds]
        each = [kind.needed(tokens=tokens, in_flight=in_flight, dcp=dcp) for kind in kinds]
        if self.summed:
            return np.maximum.reduce(each) if len(each) > 1 else each[0]
        return sum(count * blocks for count, blocks in zip(counts, each, strict=True))

    @property
    def token_block(self) -> Any:
        """Tokens in the smallest block that holds tokens at all, which the engine prints by."""
        blocks = [group.pages.block for group in self.groups if group.pages.rule != "state"]
        return np.minimum.reduce(blocks) if len(blocks) > 1 else blocks[0] if blocks else 1


def group_pages(
    kinds: Sequence[Pages], *, ratio: float, state_alignment: int, least_block: int, packed: bool
) -> Grouping | None:
    """The grouping of a model's page kinds; None for a model that caches nothing.

    ``ratio``: when the largest kind has fewer than ``ratio`` times the layers of the smallest, groups take the larger
    size (padding the smaller kind) instead of the smaller. ``packed`` lays compressed groups out densely.
    """
    if not kinds:
        return None
    if any(kind.parts for kind in kinds):
        return _compressed(kinds, packed=packed)
    kinds = _fit_states(kinds, state_alignment, least_block)
    if _same_slots(kinds):
        return Grouping(groups=tuple(CacheGroup(pages=kind, layers=kind.layers) for kind in kinds), summed=True)
    kinds = _equal_pages(kinds)
    counts = [len(kind.layers) for kind in kinds]
    size = max(counts) if max(counts) < min(counts) * ratio else min(counts)
    groups = []
    for kind in kinds:
        number = ceil_div(len(kind.layers), size)
        groups += [CacheGroup(pages=kind, layers=kind.layers[first::number]) for first in range(number)]
    return Grouping(groups=tuple(groups), summed=False)


def _members(layers: Sequence[int], depth: int) -> Any:
    """``m[i]``: how many of ``layers`` come before layer ``i`` (0 … depth)."""
    marks = np.zeros(depth + 1, dtype=np.int64)
    np.add.at(marks, np.asarray(layers, dtype=np.int64) + 1, 1)
    return np.cumsum(marks)


def _same_slots(kinds: Sequence[Pages]) -> bool:
    """Whether all kinds need equally many blocks for any request, so that one block table serves them."""
    first = kinds[0]
    if first.rule == "state" and len(kinds) > 1:
        return all(kind.rule == "state" and kind.held == first.held for kind in kinds)
    return all(
        kind.rule == first.rule and kind.span == first.span and np.array_equal(kind.block, first.block)
        for kind in kinds
    )


def _fit_states(kinds: Sequence[Pages], alignment: int, least_block: int) -> list[Pages]:
    """Raise the block of attention layers until a page holds a recurrent state; pad the state's page to the same size."""
    states = [kind for kind in kinds if kind.rule == "state"]
    attention = [kind for kind in kinds if kind.rule == "full"]
    if not states:
        return list(kinds)
    if not attention:
        return [replace(kind, block=1) for kind in kinds]
    widest = max(attention, key=lambda kind: float(np.max(kind.page_bytes)))
    per_token = widest.page_bytes / widest.block
    state = np.maximum.reduce([kind.page_bytes for kind in states]) if len(states) > 1 else states[0].page_bytes
    block = np.maximum(least_block, alignment * np.ceil(state / (alignment * per_token))).astype(np.int64)
    page = block * per_token
    return [
        replace(kind, block=block, page_bytes=page)
        if kind.rule == "state"
        else replace(kind, block=block, page_bytes=kind.page_bytes / kind.block * block)
        for kind in kinds
    ]


def _equal_pages(kinds: Sequence[Pages]) -> list[Pages]:
    """Give every kind the largest page: blocks of the others grow by whole factors, what is left over is padding."""
    largest = np.maximum.reduce([np.asarray(kind.page_bytes, dtype=float) for kind in kinds])
    return [
        replace(kind, block=kind.block * np.maximum(largest // kind.page_bytes, 1).astype(np.int64), page_bytes=largest)
        if kind.rule != "state"
        else replace(kind, page_bytes=largest)
        for kind in kinds
    ]


def _compressed(kinds: Sequence[Pages], *, packed: bool) -> Grouping:
    """DeepSeek-V4: full-length latents in one group, windows and compressor states in groups of about as many layers.

    Groups lay over each other in one slab: a block costs the largest group where ``packed``, else as many tuples of the
    full group's page sizes as the largest group has layers.
    """
    full = [kind for kind in kinds if kind.rule == "full"]
    windows = [kind for kind in kinds if kind.rule != "full"]
    depth = max((len(kind.layers) for kind in full), default=1)
    size = _least_padding([depth, *(len(kind.layers) for kind in windows)], least=depth)
    merged = tuple(sorted(index for kind in full for index in kind.layers))
    groups = [CacheGroup(pages=kind, layers=kind.layers) for kind in full]
    tuples = depth
    for kind in windows:
        number = ceil_div(len(kind.layers), size)
        tuples = max(tuples, ceil_div(len(kind.layers), number))
        groups += [CacheGroup(pages=kind, layers=kind.layers[first::number]) for first in range(number)]
    sizes = {part for kind in full for part in kind.parts}
    full_bytes = sum(len(kind.layers) * sum(kind.parts) for kind in full)
    windows_bytes = max((len(g.layers) * sum(g.pages.parts) for g in groups if g.pages.rule != "full"), default=0.0)
    cost = max(full_bytes, windows_bytes) if packed else tuples * sum(sizes)
    one_table = [groups[0]] if merged else []
    rest = [group for group in groups if group.pages.rule != "full"]
    return Grouping(groups=tuple(one_table + rest), summed=False, tuple_bytes=float(cost))


def _least_padding(counts: Sequence[int], *, least: int) -> int:
    """The group size from ``least`` up that pads ``counts`` least when each is rounded up to it; the larger of equals."""
    best, best_padding = least, None
    for size in range(least, max(counts) + 1):
        padding = sum(-count % size for count in counts)
        if best_padding is None or padding <= best_padding:
            best, best_padding = size, padding
    return best
