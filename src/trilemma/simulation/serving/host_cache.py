"""Caches in the memory of the host: what leaves the card is kept there and comes back instead of being computed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class HostCache:
    """``total`` blocks by the name of their content, the one used longest ago thrown out first and the end of a stretch before
    its beginning; a block comes back in ``block_s``, one after another.

    ``before``: a prompt enters a step when what it needs is back; else the step that it is in ends no sooner. ``writes_through``:
    what is computed is written at once, behind the steps; else what the card throws out.

    Source: vllm/v1/kv_offload/cpu/manager.py; sglang/srt/mem_cache/hiradix_cache.py.
    """

    __slots__ = (
        "_held", "_link_free_s", "before", "block_s", "held", "loaded", "loads", "step_until_s", "stored", "total", "waited_s",
        "writes_through",
    )  # fmt: skip

    def __init__(self, total: int, *, block_s: float, writes_through: bool, before: bool) -> None:
        self.total, self.block_s, self.writes_through, self.before = total, block_s, writes_through, before
        self.held = self.stored = self.loaded = self.loads = 0
        self.waited_s = self._link_free_s = self.step_until_s = 0.0
        self._held: OrderedDict[Hashable, int] = OrderedDict()

    def store(self, key: Hashable, blocks: int) -> None:
        """The first ``blocks`` of what ``key`` names are here from now on; what is here already is not written again."""
        before = self._held.pop(key, 0)
        kept = min(max(blocks, before), self.total)
        if not kept:
            return
        self._held[key] = kept
        self.held += kept - before
        self.stored += max(kept - before, 0)
        while self.held > self.total:
            oldest, many = next(iter(self._held.items()))
            gone = min(many, self.held - self.total)
            self.held -= gone
            if gone == many:
                del self._held[oldest]
            else:
                self._held[oldest] = many - gone

    def blocks_of(self, key: Hashable) -> int:
        return self._held.get(key, 0)

    def found(self, keys: Sequence[Hashable], each: int, most: int) -> tuple[int, int]:
        """(leading ``keys`` that are here, blocks in them) of stretches of ``each`` blocks, up to ``most`` blocks."""
        count = blocks = 0
        for key in keys:
            here = self._held.get(key, 0)
            if not here or blocks >= most:
                break
            count += 1
            blocks += here
            if here < each:
                break
        return count, min(blocks, most)

    def touch(self, keys: Sequence[Hashable]) -> None:
        """``keys`` are in use: they are thrown out last."""
        for key in keys:
            if key in self._held:
                self._held.move_to_end(key)

    def load(self, blocks: int, now_s: float) -> float:
        """When ``blocks`` are back on the card, asked for at ``now_s``."""
        self._link_free_s = max(now_s, self._link_free_s) + blocks * self.block_s
        self.loaded += blocks
        self.loads += 1
        self.waited_s += self._link_free_s - now_s
        return self._link_free_s
