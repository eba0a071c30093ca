"""``--holdout``: training time fitted again without each group of rows, and the samples that such fits need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trilemma.measured.training.classes import resolved_cell
from trilemma.measured.training.figures import MeasuredSpeed
from trilemma.measured.training.fit import Design, Sample
from trilemma.measured.training.question import MeasuredTraining
from trilemma.measured.training.spread import bounds_without

#: Weight of a row whose layout is incomplete or derived (tier B); contradictory ones (tier C) are not fitted.
_WEIGHTS = {"": 1.0, "A": 1.0, "B": 0.3}


#: The era of a run whose source states no release: it has an offset of its own, not that of the newest.
UNSTATED = "unstated"


def sample_of(question: MeasuredTraining, speed: MeasuredSpeed) -> Sample:
    tokens = question.workload.seq * question.workload.global_batch / int(question.plan.layout.gpus)
    return Sample(
        model=question.model,
        cluster=question.cluster,
        plan=question.plan,
        workload=question.workload,
        framework=question.framework,
        era=question.era or UNSTATED,
        measured_s=tokens / speed.tokens_per_s_per_gpu,
        source=speed.row.text("source_title"),
        weight=_WEIGHTS.get(speed.row.text("tier"), 0.0),
    )


def refit(
    scored: Mapping[int, tuple[MeasuredTraining, MeasuredSpeed]], columns: Sequence[str]
) -> tuple[dict[int, tuple[float, float, float]], dict[str, Any]]:
    """((seconds a step, low, high) by row index, the ``holdout`` part of the document): every row by a fit, and inside a range,
    that never saw its group."""
    indices = list(scored)
    samples = [sample_of(*scored[index]) for index in indices]
    design = Design(samples)
    groups = [
        tuple(resolved_cell(scored[index][1].row, scored[index][0], column) for column in columns) for index in indices
    ]
    start = design.fit()
    held_s = np.empty(len(indices))
    blind: dict[str, int] = {}
    for group in dict.fromkeys(groups):
        held = np.array([other == group for other in groups])
        theta = design.fit(~held, first=start)
        held_s[held] = np.exp(design.predict(theta)[held])
        for name in design.named_only(held):
            blind[name] = blind.get(name, 0) + 1
    document = {
        "columns": list(columns),
        "groups": len(set(groups)),
        "terms": list(design.names),
        "uninformed": blind,
        "widths": True,
    }
    bounds = bounds_without(np.exp(design.measured) / held_s, design.weights(), samples, groups)
    steps = zip(indices, held_s.tolist(), bounds, strict=True)
    return {index: (step_s, step_s * low, step_s * high) for index, step_s, (low, high) in steps}, document
