"""Answers that set two things side by side: cards for one job, versions of an engine for one command."""

from __future__ import annotations

from typing import Any

from trilemma.ask.answers import Shown
from trilemma.estimate.upgrade import Upgrade
from trilemma.search.compare import CardComparison
from trilemma.search.compare_training import TrainingComparison


class CardsCompared(Shown, CardComparison):
    """GPUs side by side for one job, each with its best plan."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether any of the GPUs has a plan that meets the targets."""
        return any(candidate.best_meets for candidate in self.candidates)

    def document(self, *, explain: bool) -> dict[str, Any]:
        from trilemma.report.comparison import comparison_document

        return comparison_document(self, model=self.model.name, explain=explain)

    def screen(self, *, explain: bool, width: int) -> str:  # noqa: ARG002 - nothing is left to explain
        from trilemma.report.comparison import render_comparison

        return render_comparison(self, model=self.model.name, width=width)

    def chart(self) -> dict[str, Any] | None:
        """A Vega-Lite specification: throughput, price and latency of each."""
        from trilemma.report.charts import comparison_chart

        return comparison_chart(self, model=self.model.name)

    def __repr__(self) -> str:
        cards = ", ".join(one.cluster.accelerator.name[:40] for one in self.candidates[:4])
        return f"<CardsCompared: {self.model.name[:80]} on {len(self.candidates)} GPUs ({cards})>"

    __str__ = Shown.__str__


class TrainingCardsCompared(Shown, TrainingComparison):
    """GPUs side by side for one training job, each with its best plan."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether any of the GPUs holds the job."""
        return any(candidate.best is not None for candidate in self.candidates)

    def document(self, *, explain: bool) -> dict[str, Any]:
        from trilemma.report.training_comparison import training_comparison_document

        return training_comparison_document(self, explain=explain)

    def screen(self, *, explain: bool, width: int) -> str:  # noqa: ARG002 - nothing is left to explain
        from trilemma.report.training_comparison import render_training_comparison

        return render_training_comparison(self, model=self.model.name, width=width)

    def __repr__(self) -> str:
        return f"<TrainingCardsCompared: {self.model.name[:80]} on {len(self.candidates)} GPUs>"

    __str__ = Shown.__str__


class VersionsCompared(Shown, Upgrade):
    """A command under two versions of its engine."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether the command goes on as it stands."""
        return self.harmless

    def document(self, *, explain: bool) -> dict[str, Any]:  # noqa: ARG002
        from trilemma.report.upgrade import upgrade_document

        return upgrade_document(self)

    def screen(self, *, explain: bool, width: int) -> str:  # noqa: ARG002
        from trilemma.report.upgrade import render_upgrade

        return render_upgrade(self, width=width)

    def __repr__(self) -> str:
        goes_on = "goes on as it stands" if self.harmless else "does not go on as it stands"
        return f"<VersionsCompared: {self.engine} {self.old} to {self.new}, the command {goes_on}>"

    __str__ = Shown.__str__
