"""One budget of tokens a step for decoding and prefilling alike: vLLM's V1 scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.simulation.serving.policies.admission import enter, go_on, make_room
from trilemma.simulation.serving.policies.policy import Chunks
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import ServedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBudget:
    """Running sequences first, a token each, then the chunks of prompts that are under way, then those that wait, first come
    first served, until ``tokens`` are used up.

    Where the cache is full the sequence that entered last is thrown out and computed again later; none enters in such a step.
    ``whole_prompts_fit``: a request enters only where its whole prompt fits into the cache, not its first chunk alone.
    ``chunked``: prompts may be cut; else a prompt that exceeds what is left of the budget waits.

    Source: vllm/v1/core/sched/scheduler.py, schedule(); scheduler_reserve_full_isl in vllm/config/scheduler.py.
    """

    tokens: int
    whole_prompts_fit: bool = True
    chunked: bool = True

    @property
    def reserves(self) -> bool:
        return False

    @property
    def decodes_along(self) -> bool:
        return True

    def compose(self, engine: EngineReplica) -> Chunks:
        before, due = engine.preemptions, make_room(engine)
        chunks: Chunks = []
        budget = self.tokens - engine.decoding
        if engine.prefilling:
            budget = go_on(engine, chunks, budget)
        if engine.preemptions == before and engine.waiting:
            size = engine.block_size

            def needs(request: ServedRequest, cached: int, new: int) -> tuple[int, int]:
                blocks = -(-(cached + new) // size) - cached // size
                return blocks, -(-request.target // size) - cached // size if self.whole_prompts_fit else blocks

            enter(engine, chunks, budget, kept_free=due, chunked=self.chunked, needs=needs)
        return chunks


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxUtilization(TokenBudget):
    """As many requests as the cache holds now, whole prompts; where it runs full the one that entered last is paused and computed
    again.

    Source: NVIDIA/TensorRT-LLM docs/source/features/paged-attention-ifb-scheduler.md, MAX_UTILIZATION.
    """

    chunked: bool = False
