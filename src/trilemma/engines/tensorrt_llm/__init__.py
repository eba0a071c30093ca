"""TensorRT-LLM: ``read`` and ``write`` trtllm-serve and its YAML, ``budget`` its memory rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trilemma.engines.base import EngineCommand, Stage, StartUp
from trilemma.plans import Plan

if TYPE_CHECKING:
    from trilemma.commands.flags import FlagTable

__all__ = ["TensorrtLlm"]


class TensorrtLlm:
    """TensorRT-LLM as an `Engine`; each part is imported when it is used."""

    name = "tensorrt-llm"

    def start_up(self, **question: Any) -> StartUp:
        """See `trilemma.engines.tensorrt_llm.budget.start_up`."""
        from trilemma.engines.tensorrt_llm import budget

        return budget.start_up(**question)

    def likeliest_stage(self, start: StartUp) -> tuple[Stage, float]:
        """See `trilemma.engines.verdict.likeliest`."""
        from trilemma.engines.verdict import likeliest

        stage, probability = likeliest(start)
        return stage, probability

    def feasible_fraction(self, start: StartUp) -> tuple[Any, Any] | None:
        """The shares of free memory with which the plan starts: those whose pool holds the longest request asked for."""
        import numpy as np

        from trilemma.engines.verdict import least_pool_bytes

        unused = np.asarray(start.pool.available_bytes, dtype=float) / start.memory_fraction
        low = np.where(unused > 0, least_pool_bytes(start) / np.maximum(unused, 1.0), np.inf)
        if np.ndim(low):
            return low, np.ones(np.shape(low))
        return (float(low), 1.0) if low <= 1 else None

    def read(self, argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
        """See `trilemma.engines.tensorrt_llm.read.read`."""
        from trilemma.engines.tensorrt_llm.read import read

        return read(argv, version=version)

    def write(self, *, model: str, plan: Plan) -> list[str]:
        """See `trilemma.engines.tensorrt_llm.write.write`."""
        from trilemma.engines.tensorrt_llm.write import write

        return write(model=model, plan=plan)

    def flags(self) -> FlagTable:
        """See `trilemma.engines.tensorrt_llm.flags.table`."""
        from trilemma.engines.tensorrt_llm.flags import table

        return table()

    def facts(self, version: str | None) -> dict[str, tuple[Any, str]]:
        """Fact → (value, source) at ``version``."""
        from trilemma.engines.tensorrt_llm.facts import for_version

        facts = for_version(version)
        return {name: (getattr(facts, name), source) for name, source in facts.sources.items()}
