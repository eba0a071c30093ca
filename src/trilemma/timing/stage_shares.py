"""How the layers of a model lie on pipeline stages, as far as the time of a step depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.plans.pipeline import V_SHAPED, stage_layers
from trilemma.plans.training import TrainingPlan

#: Schedules that put the first and the last stage on one rank, so that the logits are shared with a stage without them.
BOTH_ENDS = (*V_SHAPED, "dualpipe")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageShares:
    """``fullest``: layers of the fullest stage that is not the last over all layers; ``last`` and ``others``: layers of the last
    stage and of all others together over those of the fullest; ``layers`` of a stage on average over plans."""

    fullest: Any
    last: Any
    others: Any
    layers: float


def stage_shares(layers: int, plan: TrainingPlan, *, mtp: int = 0) -> StageShares:
    """How layers lie on stages, as `plans.pipeline` places them; of ``layers`` the last ``mtp`` are prediction layers.

    Schedules that put both ends on one rank share the layers evenly.
    """
    pp, vpp = np.asarray(plan.layout.pp), np.asarray(plan.layout.vpp)
    pairs, where = np.unique(np.stack(np.broadcast_arrays(pp, vpp)).reshape(2, -1), axis=1, return_inverse=True)
    rows = []
    for stages, chunks in pairs.T.tolist():
        counts = stage_layers(layers - mtp, stages, chunks, plan.schedule, mtp=mtp, sizes=plan.pipeline_layers)
        fullest = max(counts[:-1], default=counts[-1])
        last = fullest if plan.schedule in BOTH_ENDS else counts[-1]
        rows.append((fullest / layers, last / fullest, (sum(counts) - counts[-1]) / fullest, fullest))
    shape = np.broadcast_shapes(pp.shape, vpp.shape)
    table = np.asarray(rows, dtype=float)[where.reshape(shape)]
    return StageShares(
        fullest=table[..., 0], last=table[..., 1], others=table[..., 2], layers=float(np.mean(table[..., 3]))
    )
