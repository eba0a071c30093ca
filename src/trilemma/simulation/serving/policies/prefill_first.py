"""Prompts before tokens: decoding waits while there are prompts that may enter, as in SGLang and vLLM's V0."""

from __future__ import annotations

from trilemma.simulation.serving.policies.admission import enter, go_on, make_room
from trilemma.simulation.serving.policies.policy import Chunks
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import ServedRequest


class PrefillFirst:
    """A step prefills up to ``tokens`` of prompts, or where none may enter it decodes.

    A prompt enters where the cache holds it beside what running requests will still need: a share of the tokens that they may
    yet make, up to ``longest_future`` of each. The share falls from ``future_share`` to ``least_future_share`` over
    ``decay_steps`` steps of decoding, and starts again when the cache ran full and requests had to be thrown out.

    Source: sglang/srt/managers/schedule_policy.py (PrefillAdder) and scheduler.py (get_next_batch_to_run, new_token_ratio).
    """

    reserves = False
    decodes_along = False

    def __init__(
        self, *, tokens: int, chunked: bool = True, future_share: float = 0.0, least_future_share: float = 0.0,
        decay_steps: int = 1, longest_future: int = 4096,
    ) -> None:  # fmt: skip
        self.tokens, self.chunked = tokens, chunked
        self._most, self._least, self._longest = future_share, least_future_share, longest_future
        self._decay = (future_share - least_future_share) / decay_steps
        self._since = 0

    def compose(self, engine: EngineReplica) -> Chunks:
        before, due = engine.preemptions, make_room(engine)
        if engine.preemptions > before:
            self._since = engine.steps
        chunks: Chunks = []
        budget = go_on(engine, chunks, self.tokens) if engine.prefilling else self.tokens
        if engine.preemptions == before and engine.waiting:
            size = engine.block_size
            future = self._future_blocks(engine) + due

            def needs(request: ServedRequest, cached: int, new: int) -> tuple[int, int]:
                nonlocal future
                own = min(request.osl - request.made, self._longest)
                blocks = -(-(cached + new) // size) - cached // size
                whole = -(-(request.target + own) // size) - cached // size
                must_fit = future + (whole if self._most else -(-request.target // size) - cached // size)
                future += -(-own // size) if self._most else 0
                return blocks, must_fit

            enter(engine, chunks, budget, kept_free=0, chunked=self.chunked, needs=needs)
        return chunks

    def _future_blocks(self, engine: EngineReplica) -> int:
        """Blocks that running requests are expected to need yet."""
        share = max(self._most - self._decay * (engine.steps - self._since), self._least)
        if not share:
            return 0
        left = sum(min(_left_of(one, engine.tick), self._longest) for one in engine.running.values())
        return int(left * share / engine.block_size)


def _left_of(request: ServedRequest, tick: int) -> int:
    """Tokens that a running request has yet to make."""
    return request.last_tick - tick if request.last_tick >= 0 else request.osl - request.made
