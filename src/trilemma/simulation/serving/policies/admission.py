"""What policies have in common: requests in the order in which they came, as far as tokens, slots and blocks go."""

from __future__ import annotations

from collections.abc import Callable

from trilemma.simulation.serving.policies.policy import Chunks
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import ServedRequest


def enter(
    engine: EngineReplica, chunks: Chunks, budget: int, *, kept_free: int, chunked: bool,
    needs: Callable[[ServedRequest, int, int], tuple[int, int]],
) -> None:  # fmt: skip
    """Let requests in until ``budget`` tokens are used up, first come first served, and add their first chunks.

    ``needs`` says of a request with so many cached tokens and a first chunk of so many how many blocks it is given and how many
    must be free for it, ``kept_free`` apart. Prompts that are not ``chunked`` enter where all of what is left of them goes into
    the step. A request whose cache was received decodes from this step on, and may need a block for it. One whose adapter finds
    no slot is passed over; one that waits for what the host held of its prompt enters with nothing to compute yet.
    """
    cache, adapters = engine.cache, engine.adapters
    passed_over: list[ServedRequest] = []
    while budget > 0 and len(engine.running) < engine.most_running and (request := engine.head()) is not None:
        if adapters is not None and not adapters.takes(request.arrival.adapter):
            passed_over.append(engine.waiting.popleft())
            continue
        found = cache.find(request)
        new = request.target - found.tokens
        if new > budget and not request.received:
            if not chunked:
                break
            new = budget
        blocks, must_fit = needs(request, found.tokens, new)
        if must_fit + found.loaded + cache.not_held(request, found) > cache.pool.free - kept_free:
            break
        engine.waiting.popleft()
        cache.hold(request, found, blocks + found.loaded)
        engine.admit(request)
        cache.name_stretches(request, found.tokens + new)
        if request.received:
            request.computed = request.target
            engine.begin_decoding(request)
            kept_free, budget = kept_free + 1, budget - 1
            continue
        if found.loaded and cache.host is not None:
            back_s = cache.host.load(found.loaded, engine.now_s)
            if cache.host.before:
                request.loaded_s = back_s
                continue
            cache.host.step_until_s = back_s
        chunks.append((request, new))
        budget -= new
    engine.waiting.extendleft(reversed(passed_over))


def go_on(engine: EngineReplica, chunks: Chunks, budget: int, *, preempts: bool = True) -> int:
    """Add chunks of the prompts that are under way; what is left of the budget. Where blocks are missing the request that entered
    last is thrown out, if the policy ``preempts``."""
    for request in tuple(engine.prefilling):
        if budget <= 0 or request.index not in engine.running or request.loaded_s > engine.now_s:
            continue
        new = min(request.target - request.computed, budget)
        if preempts:
            blocks = -(-(request.computed + new) // engine.block_size) - request.blocks - request.shared_blocks
            victim = None
            while blocks > engine.pool.free - engine.blocks_due(1) and victim is not request:
                victim = engine.preempt()
            if victim is request:
                break
            engine.cache.grow(request, blocks)
        engine.cache.name_stretches(request, request.computed + new)
        chunks.append((request, new))
        budget -= new
    return budget


def make_room(engine: EngineReplica) -> int:
    """Throw out the requests that entered last until all that decode can go on; blocks that they need for it."""
    while (due := engine.blocks_due(1)) > engine.pool.free:
        engine.preempt()
    return due
