"""Answers of searches: the best plans, of serving and of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trilemma.ask.answers import Answer, Shown
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from trilemma.search.result import SearchResult
    from trilemma.search.techniques import Technique
    from trilemma.search.training import TrainingSearch
    from trilemma.search.training_questions import Gain, LeastGpus, WaterfallStep
    from trilemma.search.training_scaling import ScalingPoint
    from trilemma.workloads import Serving, TrainingWorkload

#: Points of the front that a chart shows, and a target that every plan meets.
_CHART_POINTS, _NO_TARGET_MS = 24, 1e9


class SearchAnswer(Shown):
    """What the answers of both searches share: ``plans`` best first, of which `best` is the first."""

    __slots__ = ()

    plans: tuple[Answer, ...]
    nearest: Answer | None

    @property
    def best(self) -> Answer | None:
        return self.plans[0] if self.plans else None

    @property
    def fits(self) -> bool:
        return bool(self.plans)

    def __repr__(self) -> str:
        first = repr(self.best) if self.plans else "none fits"
        return f"<{type(self).__name__}: {len(self.plans)} plans, best {first}>"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ServingPlans(SearchAnswer):
    """The best plans of serving, then further ones of the Pareto front; ``nearest`` is the plainest plan where none is found.

    ``result`` is the search in full, ``search`` asks it again of another load, ``explanation`` says where the speed of the
    first plan comes from.
    """

    model: Model
    cluster: Cluster
    result: SearchResult
    plans: tuple[Answer, ...]
    nearest: Answer | None
    search: Callable[[Serving, int], SearchResult]
    explanation: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether there is a plan that meets the targets."""
        return bool(self.plans) and self.result.meets_targets

    def document(self, *, explain: bool) -> dict[str, Any]:
        from trilemma.report.document import serving_plans_document

        return serving_plans_document(self.result, nearest=self.nearest, explain=explain)

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.plans import nearest_words, render_plans
        from trilemma.report.text import render_estimate

        result = self.result.without_front()
        told = render_plans(
            result, model=self.model.name, cluster=self.cluster, width=width,
            explanation=self.explanation if explain else (),
        )  # fmt: skip
        if self.nearest is not None:
            plainest = render_estimate(self.nearest, explain=explain, width=width)
            return f"{told}\n\n{nearest_words(self.nearest, result)}\n\n{plainest}"
        if explain and self.plans:
            return f"{told}\n\nthe best plan in full\n\n{render_estimate(self.plans[0], explain=True, width=width)}"
        return told

    def chart(self) -> dict[str, Any] | None:
        """A Vega-Lite specification of the front in more points than the screen shows, and the front without targets."""
        from trilemma.report.charts import pareto_chart

        limited = self.search(self.result.workload, _CHART_POINTS)
        asked, unlimited = limited.workload, None
        if limited.meets_targets and (asked.ttft_ms or asked.tpot_ms):
            unlimited = self.search(replace(asked, ttft_ms=None, tpot_ms=_NO_TARGET_MS), _CHART_POINTS)
        return pareto_chart(limited, model=self.model.name, cluster=self.cluster, unlimited=unlimited)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TrainingPlans(SearchAnswer):
    """The best plans of training, then those of the front alone, and what follows the search: what more hardware would buy
    (``gains``), the fewest GPUs that hold the job, the way from a naive plan, and the techniques of the first."""

    model: Model
    cluster: Cluster
    workload: TrainingWorkload
    search: TrainingSearch
    plans: tuple[Answer, ...]
    nearest: Answer | None
    gains: tuple[Gain, ...]
    least: LeastGpus | None
    waterfall: tuple[WaterfallStep, ...]
    techniques: tuple[Technique, ...]
    scaling: tuple[ScalingPoint, ...] = ()

    def document(self, *, explain: bool) -> dict[str, Any]:
        from trilemma.report.training_plans import training_plans_document

        return training_plans_document(
            self.search, self.plans, gains=self.gains, least=self.least, waterfall=self.waterfall,
            techniques=self.techniques, nearest=self.nearest, scaling=self.scaling, explain=explain,
        )  # fmt: skip

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.text import render_estimate
        from trilemma.report.training_plans import render_training_plans

        told = render_training_plans(
            self.search, self.plans, model=self.model.name, cluster=self.cluster, workload=self.workload,
            gains=self.gains, least=self.least, waterfall=self.waterfall, techniques=self.techniques, width=width,
        )  # fmt: skip
        if self.scaling:
            from trilemma.report.training_scaling import render_scaling

            told = f"{told}\n\n{render_scaling(self.scaling, width=width)}"
        shown = self.nearest or (self.best if explain else None)
        if shown is None:
            return told
        title = "the plan that misses by least" if self.nearest else "the best plan in full"
        return f"{told}\n\n{title}\n\n{render_estimate(shown, explain=explain, width=width)}"

    def chart(self) -> dict[str, Any] | None:
        """A Vega-Lite specification of the way to the best plan, its time and memory; None where nothing is legal."""
        from trilemma.report.charts import training_chart

        drawn = self.nearest or self.best
        return None if drawn is None else training_chart(drawn, self.cluster.accelerator, self.waterfall)
