"""Requests that are admitted to the end: TensorRT-LLM's GUARANTEED_NO_EVICT, and the slots of llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.simulation.serving.policies.admission import enter, go_on
from trilemma.simulation.serving.policies.policy import Chunks
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import ServedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRequests:
    """A request enters when blocks for its prompt and all of its output are free, and is never thrown out.

    Decoding sequences take part in each step, prompts as far as ``tokens`` go, whole unless ``chunked``.

    Source: NVIDIA/TensorRT-LLM docs/source/features/paged-attention-ifb-scheduler.md.
    """

    tokens: int
    chunked: bool = False

    @property
    def reserves(self) -> bool:
        return True

    @property
    def decodes_along(self) -> bool:
        return True

    def compose(self, engine: EngineReplica) -> Chunks:
        chunks: Chunks = []
        budget = self.tokens - engine.decoding
        if engine.prefilling:
            budget = go_on(engine, chunks, budget, preempts=False)
        if engine.waiting:
            size = engine.block_size

            def needs(request: ServedRequest, cached: int, new: int) -> tuple[int, int]:  # noqa: ARG001
                blocks = -(-(request.isl + request.osl) // size) - cached // size
                return blocks, blocks

            enter(engine, chunks, budget, kept_free=0, chunked=self.chunked, needs=needs)
        return chunks


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots(WholeRequests):
    """A request enters when a slot is free: each has a part of the cache of its own, as long as the slot's context.

    Source: ggml-org/llama.cpp tools/server/server-context.cpp, update_slots.
    """

    chunked: bool = True
