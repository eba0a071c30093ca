"""What of a training's memory depends on a plan but not on its pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.memory.activations import Shards, expert_tp, layer_activations
from trilemma.memory.training_model import TrainingModel
from trilemma.memory.training_state import CutTerms, cut_terms
from trilemma.memory.weights import shard_share
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

MomentTable = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTerms:
    """What depends on a plan but not on its pipeline: terms of the state, bytes that a layer of each kind keeps and makes
    again (kinds, plans), placeholder gradients (plans,)."""

    cuts: CutTerms
    kept: MomentTable
    made: MomentTable
    placeholders: MomentTable

    def take(self, here: NDArray[Any]) -> RowTerms:
        """The terms of some rows."""
        return RowTerms(
            cuts=self.cuts.take(here), kept=self.kept[:, here], made=self.made[:, here],
            placeholders=self.placeholders[here],
        )  # fmt: skip


def row_terms(prepared: TrainingModel, plan: TrainingPlan, workload: TrainingWorkload) -> RowTerms:
    """Terms of all rows of ``plan``, whose numbers are arrays (plans,)."""
    shards = Shards.of(plan, workload)
    layers = [
        layer_activations(
            kind, prepared.traits, plan, shards, trained=prepared.trained, extra=extra,
            narrow_inputs=prepared.facts["narrow_inputs"],
        )
        for kind, extra in zip(prepared.kinds, prepared.adapter_saved, strict=True)
    ]  # fmt: skip
    cuts = cut_terms(
        prepared.table, tp=np.asarray(plan.layout.tp), ep=np.asarray(plan.layout.ep), expert_tp=expert_tp(plan),
        vocab_multiple=prepared.facts["vocab_multiple"],
    )  # fmt: skip
    return RowTerms(
        cuts=cuts,
        kept=np.stack([one.kept for one in layers]),
        made=np.stack([one.again for one in layers]),
        placeholders=np.asarray(placeholder_bytes(prepared, plan)),
    )


def placeholder_bytes(prepared: TrainingModel, plan: TrainingPlan) -> Any:
    """One placeholder for every shape of a linear layer's weight, in the format of weights: bytes, an array (plans,).

    Source: ``dummy_wgrad`` of ``data/coefficients/training_memory.toml``.
    """
    tp = np.asarray(plan.layout.tp)
    total: Any = np.zeros(tp.shape)
    for shape in prepared.placeholders:
        cut = expert_tp(plan) if shape.expert else tp
        total = total + shard_share(shard=shape.shard, units=shape.units, experts=0, tp=np.asarray(cut)) * shape.bytes
    return total
