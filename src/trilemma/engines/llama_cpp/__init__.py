"""llama.cpp: ``read`` and ``write`` llama-server's command line, ``budget`` its memory, ``placement`` what goes where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trilemma.engines.base import EngineCommand, Stage, StartUp
from trilemma.plans import Plan, ServeOptions

if TYPE_CHECKING:
    from trilemma.commands.flags import FlagTable
    from trilemma.models.architecture import Model

__all__ = ["LlamaCpp"]


class LlamaCpp:
    """llama.cpp as an `Engine`; each part is imported when it is used."""

    name = "llama.cpp"

    def start_up(self, **question: Any) -> StartUp:
        """See `trilemma.engines.llama_cpp.budget.start_up`."""
        from trilemma.engines.llama_cpp import budget

        return budget.start_up(**question)

    def likeliest_stage(self, start: StartUp) -> tuple[Stage, float]:
        """See `trilemma.engines.verdict.likeliest`."""
        from trilemma.engines.verdict import likeliest

        stage, probability = likeliest(start)
        return stage, probability

    def feasible_fraction(self, start: StartUp) -> tuple[float, float] | None:
        """None: llama.cpp takes no share of a card, it allocates what the options name."""
        del start
        return None

    def read(self, argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
        """See `trilemma.engines.llama_cpp.read.read`."""
        from trilemma.engines.llama_cpp.read import read

        return read(argv, version=version)

    def write(self, *, model: str, plan: Plan) -> list[str]:
        """See `trilemma.engines.llama_cpp.write.write`."""
        from trilemma.engines.llama_cpp.write import write

        return write(model=model, plan=plan)

    def changes(
        self, plan: Plan, model: Model, fits: Callable[[ServeOptions], bool]
    ) -> list[tuple[str, ServeOptions, float, str]]:
        """See `trilemma.engines.llama_cpp.remedies.changes`."""
        from trilemma.engines.llama_cpp.remedies import changes

        return changes(plan, model, fits)

    def flags(self) -> FlagTable:
        """See `trilemma.engines.llama_cpp.flags.table`."""
        from trilemma.engines.llama_cpp.flags import table

        return table()

    def facts(self, version: str | None) -> dict[str, tuple[Any, str]]:
        """Fact → (value, source) at ``version``."""
        from trilemma.engines.llama_cpp.facts import for_version

        facts = for_version(version)
        return {name: (getattr(facts, name), source) for name, source in facts.sources.items()}
