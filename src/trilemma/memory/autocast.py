"""What ``torch.autocast`` keeps beside a model whose weights are FP32: 16-bit copies of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.formats import catalogue
from trilemma.memory.training_state import QUANTITIES, RankState
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

_WEIGHTS = QUANTITIES.index("weights")


def casts_weights(plan: TrainingPlan, workload: TrainingWorkload) -> bool:
    """Whether products cast FP32 weights: those that are trained under autocast, or a frozen model that was loaded so.

    Sharded weights (FSDP, ZeRO-3) are cast where they are gathered.
    """
    recipe = plan.recipe
    if workload.trained_layers is not None and not workload.trains_adapters:
        return False  # most of the model is in 16 bits
    held = (workload.base_format or "") if workload.trains_adapters else recipe.gathered
    return recipe.autocast and held == "fp32" and catalogue.get(recipe.activations).bits < 32 and plan.zero < 3


def weight_casts(
    state: RankState, plan: TrainingPlan, workload: TrainingWorkload, *, first: Any, last: Any, tied: bool
) -> tuple[Any, Any]:
    """Bytes (stages, plans) of casts that are alive at the loss, and when backward begins.

    A product keeps the cast that it multiplied until its backward pass. Casts of weights that are trained are cached until
    autocast ends, after the loss, whether layers are computed again or not; those of frozen weights are not, and the output
    matrix of a frozen model is counted with its weights. An embedding is looked up as it is.

    Source: aten/src/ATen/autocast_mode.cpp, cached_cast (leaves that require gradients); sets counted with saved-tensor hooks,
    torch 2.13: 2 bytes a weight of every linear layer beside what its FP32 layer keeps.
    """
    if not casts_weights(plan, workload):
        return 0.0, 0.0
    narrow = catalogue.get(plan.recipe.activations).bits / 32
    whole = state.dense[_WEIGHTS] + state.expert[_WEIGHTS]
    head = last * state.head[_WEIGHTS]
    looked_up = 0.0 if tied else first * state.embedding[_WEIGHTS]
    layers = narrow * np.maximum(whole - looked_up - head, 0.0)
    frozen = workload.trains_adapters
    again = plan.recompute.mode == "full"
    block = narrow * state.block[_WEIGHTS]
    at_loss = (block if again else layers) if frozen else layers + narrow * head
    return at_loss, (block if again else layers) + (0.0 if frozen else narrow * head)
