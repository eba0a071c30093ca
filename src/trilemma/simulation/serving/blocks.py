"""The paged cache of one engine: who holds blocks, what is left in them when nobody does, and what is thrown out for room.

Blocks are counted, not listed. What can be found again has a key: a stretch of a prompt that others may share, or what a
request leaves behind. A key that nobody holds stays until its blocks are needed, the one left longest ago first and the end of
a stretch before its beginning, as engines free the blocks of a request in reverse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence


class BlockPool:
    """``total`` blocks, of which ``held`` belong to requests and ``kept`` hold what may be found again; ``spill`` is told of what
    is thrown out.

    Source: vllm/v1/core/block_pool.py and kv_cache_manager.py (free list, reference counts, least recently used first).
    """

    __slots__ = ("_keys", "_left", "allocated", "held", "kept", "most_held", "returned", "spill", "total")

    def __init__(self, total: int, spill: Callable[[Hashable, int], None] | None = None) -> None:
        self.total, self.held, self.kept, self.most_held = total, 0, 0, 0
        self.allocated, self.returned, self.spill = 0, 0, spill
        self._keys: dict[Hashable, list[int]] = {}
        self._left: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that a request may be given: empty ones, and those whose content nobody holds."""
        return self.total - self.held

    def take(self, blocks: int) -> None:
        """Give ``blocks`` to a request; contents that nobody holds make room."""
        self.held += blocks
        self.allocated += blocks
        if self.held > self.most_held:
            self.most_held = self.held
        over = self.held + self.kept - self.total
        if over > 0:
            self._evict(over)

    def give_back(self, blocks: int, key: Hashable = None) -> None:
        """Take ``blocks`` from a request; under a ``key`` what is in them can be found again."""
        self.held -= blocks
        self.returned += blocks
        if key is not None and blocks:
            self._forget(key)
            self._keys[key] = [blocks, 0]
            self._left[key] = None
            self.kept += blocks

    def share(self, key: Hashable, blocks: int) -> bool:
        """``blocks`` that a request holds become those of ``key``, held once; False where the key is there already."""
        entry = self._keys.get(key)
        if entry is not None and (entry[1] or entry[0] >= blocks):
            return False
        self._forget(key)
        self._keys[key] = [blocks, 1]
        return True

    def found(self, keys: Sequence[Hashable], each: int, most: int) -> tuple[int, int]:
        """(leading ``keys`` that are there, blocks in them) of stretches of ``each`` blocks, up to ``most`` blocks."""
        count = blocks = 0
        for key in keys:
            entry = self._keys.get(key)
            if entry is None or blocks >= most:
                break
            count += 1
            blocks += entry[0]
            if entry[0] < each:
                break
        return count, min(blocks, most)

    def left_of(self, key: Hashable) -> int:
        """Blocks of ``key`` that are still there and that nobody holds."""
        entry = self._keys.get(key)
        return 0 if entry is None or entry[1] else entry[0]

    def unheld(self, keys: Sequence[Hashable]) -> int:
        """Blocks of ``keys`` that nobody holds: holding them leaves fewer free."""
        entries = (self._keys[key] for key in keys)
        return sum(entry[0] for entry in entries if not entry[1])

    def hold(self, key: Hashable) -> None:
        entry = self._keys[key]
        entry[1] += 1
        if entry[1] == 1:
            del self._left[key]
            self.kept -= entry[0]
            self.held += entry[0]
            self.allocated += entry[0]
            self.most_held = max(self.most_held, self.held)

    def let_go(self, key: Hashable) -> None:
        entry = self._keys[key]
        entry[1] -= 1
        if not entry[1]:
            self._left[key] = None
            self.kept += entry[0]
            self.held -= entry[0]
            self.returned += entry[0]

    def claim(self, key: Hashable, blocks: int) -> None:
        """The first ``blocks`` of what was left under ``key`` belong to a request again; the rest is forgotten."""
        self._forget(key)
        self.held += blocks
        self.allocated += blocks
        self.most_held = max(self.most_held, self.held)

    def _forget(self, key: Hashable) -> None:
        entry = self._keys.pop(key, None)
        if entry is not None and not entry[1]:
            self.kept -= entry[0]
            del self._left[key]

    def _evict(self, blocks: int) -> None:
        while blocks > 0 and self._left:
            key = next(iter(self._left))
            entry = self._keys[key]
            if self.spill is not None:
                self.spill(key, entry[0])
            if entry[0] > blocks:
                entry[0] -= blocks
                self.kept -= blocks
                return
            blocks -= entry[0]
            self._forget(key)
