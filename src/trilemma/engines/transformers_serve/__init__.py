"""Transformers as a server: ``command`` reads and writes ``transformers serve``, ``budget`` its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trilemma.engines.base import EngineCommand, Stage, StartUp
from trilemma.plans import Plan

if TYPE_CHECKING:
    from trilemma.commands.flags import FlagTable

__all__ = ["TransformersServe"]


class TransformersServe:
    """Transformers as an `Engine`; each part is imported when it is used."""

    name = "transformers-serve"

    def start_up(self, **question: Any) -> StartUp:
        """See `trilemma.engines.transformers_serve.budget.start_up`."""
        from trilemma.engines.transformers_serve import budget

        return budget.start_up(**question)

    def likeliest_stage(self, start: StartUp) -> tuple[Stage, float]:
        """See `trilemma.engines.verdict.likeliest`."""
        from trilemma.engines.verdict import likeliest

        stage, probability = likeliest(start)
        return stage, probability

    def feasible_fraction(self, start: StartUp) -> tuple[float, float] | None:
        """None: Transformers takes no share of a card, it allocates what a request needs."""
        del start
        return None

    def read(self, argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
        """See `trilemma.engines.transformers_serve.command.read`."""
        from trilemma.engines.transformers_serve.command import read

        return read(argv, version=version)

    def write(self, *, model: str, plan: Plan) -> list[str]:
        """See `trilemma.engines.transformers_serve.command.write`."""
        from trilemma.engines.transformers_serve.command import write

        return write(model=model, plan=plan)

    def flags(self) -> FlagTable:
        """See `trilemma.engines.transformers_serve.command.table`."""
        from trilemma.engines.transformers_serve.command import table

        return table()

    def facts(self, version: str | None) -> dict[str, tuple[Any, str]]:
        """Fact → (value, source) at ``version``."""
        from trilemma.engines.transformers_serve.facts import for_version

        facts = for_version(version)
        return {name: (getattr(facts, name), source) for name, source in facts.sources.items()}
