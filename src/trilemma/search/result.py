"""What a search of serving plans answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trilemma.search.found import Found, FrontPoint
from trilemma.workloads import Serving


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Plans best first, then further members of the Pareto front of tokens/s/GPU against tokens/s/user.

    ``best`` of ``plans`` answer the question; the rest only widen the view. ``pareto`` are indices into ``plans`` of those
    on the front, ``front`` is the front in brief. ``meets_targets`` is False when no plan meets them: then the nearest
    misses are shown. ``rejected`` counts, by why, the plans that were searched and are not shown. ``free`` says that the
    number of GPUs was searched; ``cheapest`` of ``plans`` makes the most tokens for each GPU then. ``blocked`` says,
    where no plan meets the targets, which of them no plan holds and what the quickest takes.
    """

    workload: Serving
    plans: tuple[Found, ...]
    best: int
    pareto: tuple[int, ...]
    front: tuple[FrontPoint, ...]
    searched: int
    legal: int
    fitting: int
    meets_targets: bool
    rejected: Mapping[str, int]
    assumed: tuple[str, ...]
    seconds: float
    free: bool = False
    confidence: float | None = None
    cheapest: int | None = None
    blocked: tuple[str, ...] = ()

    def without_front(self) -> SearchResult:
        """The result without the plans of the front that are not among the best: they count among those that lost."""
        more = len(self.plans) - self.best
        if not more:
            return self
        rejected = Counter(self.rejected)
        rejected[worse_than_shown(self.workload, free=self.free)] += more if self.meets_targets else 0
        return replace(
            self,
            plans=self.plans[: self.best],
            pareto=tuple(at for at in self.pareto if at < self.best),
            rejected={why: count for why, count in rejected.most_common() if count > 0},
        )

    @property
    def least_gpus(self) -> int | None:
        """The fewest GPUs that carry a stated load within the targets, where their number was searched."""
        stated = self.workload.concurrency is not None or self.workload.rate is not None
        return self.plans[0].gpus if self.free and stated and self.meets_targets else None


def worse_than_shown(workload: Serving, *, free: bool) -> str:
    """Why plans that meet the targets are not shown."""
    if free and (workload.concurrency is not None or workload.rate is not None):
        return "more GPUs than a plan shown"
    return f"{'fewer tokens per second and GPU' if workload.rate is None else 'slower answers'} than a plan shown"
