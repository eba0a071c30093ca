"""SGLang: ``read`` and ``write`` its command line, ``budget`` its memory rules, ``deploy`` the files that start it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trilemma.engines.base import EngineCommand, Stage, StartUp
from trilemma.plans import Plan

if TYPE_CHECKING:
    from trilemma.commands.flags import FlagTable

__all__ = ["Sglang"]


class Sglang:
    """SGLang as an `Engine`; each part is imported when it is used."""

    name = "sglang"

    def start_up(self, **question: Any) -> StartUp:
        """See `trilemma.engines.sglang.budget.start_up`."""
        from trilemma.engines.sglang import budget

        return budget.start_up(**question)

    def likeliest_stage(self, start: StartUp) -> tuple[Stage, float]:
        """See `trilemma.engines.verdict.likeliest`."""
        from trilemma.engines.verdict import likeliest

        stage, probability = likeliest(start)
        return stage, probability

    def feasible_fraction(self, start: StartUp) -> tuple[float, float] | None:
        """The static shares with which the plan starts, of what is free before loading."""
        from trilemma.engines.verdict import feasible_share

        return feasible_share(start, before_loading=("context",))

    def read(self, argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
        """See `trilemma.engines.sglang.read.read`."""
        from trilemma.engines.sglang.read import read

        return read(argv, version=version)

    def write(self, *, model: str, plan: Plan) -> list[str]:
        """See `trilemma.engines.sglang.write.write`."""
        from trilemma.engines.sglang.write import write

        return write(model=model, plan=plan)

    def flags(self) -> FlagTable:
        """See `trilemma.engines.sglang.flags.table`."""
        from trilemma.engines.sglang.flags import table

        return table()

    def facts(self, version: str | None) -> dict[str, tuple[Any, str]]:
        """Fact → (value, source) at ``version``."""
        from trilemma.engines.sglang.facts import for_version

        facts = for_version(version)
        return {name: (getattr(facts, name), source) for name, source in facts.sources.items()}
