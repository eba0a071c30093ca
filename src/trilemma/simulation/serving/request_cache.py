"""What requests hold of the cache of one engine, and what they find in it when they come."""

from __future__ import annotations

from typing import NamedTuple

from trilemma.simulation.serving.blocks import BlockPool
from trilemma.simulation.serving.host_cache import HostCache
from trilemma.simulation.serving.traffic import ServedRequest


class FoundPrefix(NamedTuple):
    """What of a prompt is in the cache: ``tokens`` of it, in ``stretches`` by name and ``own`` blocks that the request left; and
    ``loaded`` blocks that come back from the host's memory, ``named`` stretches in all."""

    tokens: int
    stretches: int
    own: int
    loaded: int = 0
    named: int = 0


_NOTHING = FoundPrefix(0, 0, 0)


class RequestCache:
    """The blocks of ``pool``, ``block_size`` tokens each, as requests hold them; ``finds_prefixes``: what is left is found again.

    Hits count once a request, when it first enters; of ``held_tokens`` that requests gave back ``unfilled_tokens`` were empty.
    ``host`` keeps what leaves the card.
    """

    def __init__(
        self, pool: BlockPool, *, block_size: int, finds_prefixes: bool = True, host: HostCache | None = None
    ) -> None:  # fmt: skip
        self.pool, self.block_size, self.finds_prefixes, self.host = pool, block_size, finds_prefixes, host
        if host is not None and not host.writes_through:
            pool.spill = host.store
        self.host_tokens = 0
        self.hit_tokens = self.asked_tokens = self.hit_stretches = self.asked_stretches = 0
        self.held_tokens = self.unfilled_tokens = 0

    def find(self, request: ServedRequest) -> FoundPrefix:
        """What of the prompt is there; never its last token, which has to be computed for the next one."""
        if not self.finds_prefixes:
            return _NOTHING
        size, arrival = self.block_size, request.arrival
        most = (request.target - 1) // size
        each = max(arrival.stretch_tokens // size, 1)
        stretches, blocks = self.pool.found(arrival.stretches, each, most) if arrival.stretches else (0, 0)
        named, loaded = stretches, 0
        if self.host is not None and arrival.stretches:
            named, loaded = self._back(self.host, request, stretches, blocks, each, most)
        own = 0
        if named == len(arrival.stretches):
            room = most - blocks - loaded
            own = min(self.pool.left_of(request.key), room)
            if self.host is not None:
                loaded += max(min(self.host.blocks_of(request.key), room) - own, 0)
        return FoundPrefix((blocks + own + loaded) * size, stretches, own, loaded, named)

    @staticmethod
    def _back(
        host: HostCache, request: ServedRequest, stretches: int, blocks: int, each: int, most: int
    ) -> tuple[int, int]:  # fmt: skip
        """(stretches, blocks from the host) with what the host has behind ``stretches`` on the card, whose last may be cut."""
        keys = request.arrival.stretches
        whole = blocks >= stretches * each or stretches == len(keys)
        first = stretches if whole else stretches - 1
        before = blocks if whole else first * each
        more, there = host.found(keys[first:], each, most - before)
        return max(first + more, stretches), max(before + there - blocks, 0)

    def not_held(self, request: ServedRequest, found: FoundPrefix) -> int:
        """Blocks of what was found that nobody holds now: holding them leaves fewer free."""
        return found.own + (self.pool.unheld(request.arrival.stretches[: found.stretches]) if found.stretches else 0)

    def hold(self, request: ServedRequest, found: FoundPrefix, blocks: int) -> None:
        """``request`` holds what was found for it, and ``blocks`` new ones."""
        pool = self.pool
        for key in request.arrival.stretches[: found.stretches]:
            pool.hold(key)
        if found.own:
            pool.claim(request.key, found.own)
        pool.take(blocks)
        request.shared = found.stretches
        request.shared_blocks = found.tokens // self.block_size - found.own - found.loaded
        if self.host is not None:
            self.host.touch((*request.arrival.stretches[: found.named], request.key))
        request.blocks, request.computed = found.own + blocks, found.tokens
        if not request.preempted:
            self.hit_tokens += found.tokens
            self.asked_tokens += request.target
            self.hit_stretches += found.named
            self.host_tokens += found.loaded * self.block_size
            self.asked_stretches += len(request.arrival.stretches)

    def grow(self, request: ServedRequest, blocks: int) -> None:
        self.pool.take(blocks)
        request.blocks += blocks

    def name_stretches(self, request: ServedRequest, upto: int) -> None:
        """The stretches that lie within the first ``upto`` tokens can be found by others from now on."""
        arrival, size = request.arrival, self.block_size
        stretches = arrival.stretches
        while request.shared < len(stretches):
            end = min((request.shared + 1) * arrival.stretch_tokens, request.isl)
            blocks = end // size - request.shared_blocks
            if end > upto or blocks < 0 or blocks > request.blocks or not (blocks or end == request.isl):
                return
            if not self.pool.share(stretches[request.shared], blocks):
                return
            if self.host is not None and self.host.writes_through:
                self.host.store(stretches[request.shared], blocks)
            request.shared += 1
            request.shared_blocks += blocks
            request.blocks -= blocks

    def release(self, request: ServedRequest, *, leaves: int) -> None:
        """``request`` gives its blocks back; its first ``leaves`` tokens can be found again."""
        pool, full = self.pool, 0
        held = (request.blocks + request.shared_blocks) * self.block_size
        self.held_tokens += held
        self.unfilled_tokens += max(held - leaves, 0)
        if self.finds_prefixes:
            full = min(max(leaves // self.block_size - request.shared_blocks, 0), request.blocks)
        pool.give_back(request.blocks - full)
        if full:
            pool.give_back(full, request.key)
            if self.host is not None and self.host.writes_through:
                self.host.store(request.key, full)
        for key in reversed(request.arrival.stretches[: request.shared]):
            pool.let_go(key)
        request.blocks = request.shared = request.shared_blocks = 0
