"""The most that what is in no line of a training ledger may add: towers that read images, experts with more than their share,
copies of an optimizer step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trilemma.formats import catalogue
from trilemma.memory.activations import Shards
from trilemma.memory.training_state import TensorCosts
from trilemma.memory.traits import coefficients
from trilemma.models.architecture import ExpertFfn, Model, Tensor
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

#: Patches that a tower works on for one token of the language model: it merges two by two (Qwen2-VL, Llama 4), or more.
_PATCHES = 4
#: Bytes that a layer keeps per patch and hidden value (Korthikanti et al. 2022, without scores), and with recomputation.
_KEPT, _KEPT_INPUT = 34.0, 2.0
#: Weights of a layer over the square of its width: attention 4, feed-forward 8.
_SQUARES = 12.0


def most_uncounted(model: Model, plan: TrainingPlan, workload: TrainingWorkload) -> Any:
    """Bytes on one rank, scalar or array (plans,): a tower trained whole with every token of a sequence from an image.

    Weights, gradients and moments as the recipe holds them (weights alone where adapters train), optimizer state over the
    replicas from ZeRO-1 on; activations of its layers, of their inputs alone under full recompute. 0 without a tower. The
    least is 0 as well: text alone trains no tower.

    Source: the towers of ``data/vision_towers.json`` and of the configuration itself.
    """
    tensors = tuple(model.of_part("vision"))
    if not tensors:
        return 0.0
    costs = TensorCosts(plan=plan, frozen_format="stored" if workload.trains_adapters else None)
    weights, _, gradients, master, optimizer, copies, _ = np.sum([costs.of(one) for one in tensors], axis=0)
    replicas = np.asarray(plan.layout.dp) * plan.layout.cp if plan.zero >= 1 else 1
    state = weights + gradients + copies + (master + optimizer) / replicas
    layers, width = _shape(tensors)
    each = _KEPT_INPUT * layers + _KEPT if plan.recompute.mode == "full" else _KEPT * layers
    return state + _PATCHES * np.asarray(Shards.of(plan, workload).tokens) * width * each


def second_moment_copy(plan: TrainingPlan, optimizer: Any, facts: Mapping[str, Any]) -> Any:
    """Bytes on one rank, scalar or array (plans,): the copy of one moment that PyTorch's AdamW holds while it steps over all
    tensors at once, of ``optimizer`` bytes of moments. Its fused kernel holds none; which of both runs depends on releases.

    Under ZeRO-3 of DeepSpeed it steps over a sub-group at a time.

    Source: torch/optim/adamw.py, _multi_tensor_adamw; ``foreach`` of data/coefficients/training_memory.toml.
    """
    moments = plan.optimizer.moments
    made_by_torch = facts.get("foreach", False) and moments in (("weights", "weights"), ("fp32", "fp32"))
    if not made_by_torch or plan.optimizer_in_backward or plan.optimizer.paged or plan.optimizer.newton_schulz_steps:
        return 0.0
    copy = np.asarray(optimizer) / len(moments)
    return np.minimum(copy, 4.0 * facts["most_stepped"]) if "most_stepped" in facts and plan.zero >= 3 else copy


def looped_step(plan: TrainingPlan, tensors: Sequence[Tensor], facts: Mapping[str, Any]) -> float:
    """Bytes of what PyTorch's AdamW makes while it steps over one tensor after the other, as it does on a processor: the root
    of the second moment and that root divided, of the largest tensor.

    Source: torch/optim/adamw.py, _single_tensor_adamw.
    """
    if not facts.get("foreach", False) or plan.optimizer.moments not in (("weights", "weights"), ("fp32", "fp32")):
        return 0.0
    name = plan.recipe.weights if plan.optimizer.moments[1] == "weights" else "fp32"
    return 2.0 * max((one.elements for one in tensors), default=0) * catalogue.get(name).bits / 8


def uneven_routing(
    model: Model, plan: TrainingPlan, workload: TrainingWorkload, reserved: Any, facts: Mapping[str, Any]
) -> Any:
    """Bytes on one rank, scalar or array (plans,): the most that uneven routing of real text adds to ``reserved`` bytes of a
    mixture whose experts are spread over ranks. 0 for full sequences, which stand for runs with even routing, but where a
    framework trains on text unless told otherwise.

    Source: table ``uneven_routing`` of data/coefficients/training_memory.toml.
    """
    even = workload.examples == "full" and not facts.get("routes_text", False)
    if even or not any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers):
        return 0.0
    return coefficients()["uneven_routing"]["most"] * np.asarray(reserved) * (np.asarray(plan.layout.ep) > 1)


def _shape(tensors: Sequence[Tensor]) -> tuple[float, int]:
    """(layers, width) of a tower: the width of its norms, and as many layers of that width as its weights make."""
    widths = Counter(one.shape[0] for one in tensors if len(one.shape) == 1)
    width = widths.most_common(1)[0][0] if widths else max(one.shape[-1] for one in tensors)
    return max(sum(one.elements for one in tensors) / (_SQUARES * width**2), 1.0), int(width)
