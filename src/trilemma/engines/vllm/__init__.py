"""vLLM: ``read`` and ``write`` its command line, ``budget`` its memory rules, ``log`` what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trilemma.engines.base import EngineCommand, Stage, StartUp
from trilemma.plans import Draft, Layout, Plan, ServeOptions

if TYPE_CHECKING:
    from trilemma.commands.flags import FlagTable
    from trilemma.hardware.accelerator import Accelerator
    from trilemma.models.architecture import Model

__all__ = ["Vllm"]


class Vllm:
    """vLLM as an `Engine`; each part is imported when it is used."""

    name = "vllm"

    def start_up(
        self,
        *,
        model: Model,
        accelerator: Accelerator,
        layout: Layout,
        options: ServeOptions,
        draft: Draft | None = None,
        version: str | None = None,
        free_bytes: float | None = None,
        capacity_bytes: float | None = None,
        date: str | None = None,
    ) -> StartUp:
        """See `trilemma.engines.vllm.budget.start_up`."""
        from trilemma.engines.vllm import budget

        return budget.start_up(
            model=model,
            accelerator=accelerator,
            layout=layout,
            options=options,
            draft=draft,
            version=version,
            free_bytes=free_bytes,
            capacity_bytes=capacity_bytes,
            date=date,
        )

    def likeliest_stage(self, start: StartUp) -> tuple[Stage, float]:
        """See `trilemma.engines.vllm.verdict.likeliest`."""
        from trilemma.engines.verdict import likeliest

        stage, probability = likeliest(start)
        return stage, probability

    def feasible_fraction(self, start: StartUp) -> tuple[float, float] | None:
        """See `trilemma.engines.vllm.verdict.feasible_fraction`."""
        from trilemma.engines.verdict import feasible_fraction

        return feasible_fraction(start)

    def read(self, argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
        """See `trilemma.engines.vllm.read.read`."""
        from trilemma.engines.vllm.read import read

        return read(argv, version=version)

    def write(self, *, model: str, plan: Plan) -> list[str]:
        """See `trilemma.engines.vllm.write.write`."""
        from trilemma.engines.vllm.write import write

        return write(model=model, plan=plan)

    def flags(self) -> FlagTable:
        """See `trilemma.engines.vllm.flags.table`."""
        from trilemma.engines.vllm.flags import table

        return table()

    def facts(self, version: str | None) -> dict[str, tuple[Any, str]]:
        """Fact → (value, source) at ``version``."""
        from trilemma.engines.vllm.facts import for_version

        facts = for_version(version)
        return {name: (getattr(facts, name), source) for name, source in facts.sources.items()}
