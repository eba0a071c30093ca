"""How often a stage is passed forward and backward in a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """How often the work of one forward pass is done: ``forward`` once, then backward, then again for recompute.

    ``linears``, ``feed_forward``, ``experts``, ``attention``, ``pointwise`` and ``exchanges`` (collectives) map to
    (input gradient, weight gradient, recompute).
    """

    linears: tuple[float, float, float]
    feed_forward: tuple[float, float, float]
    experts: tuple[float, float, float]
    attention: tuple[float, float, float]
    pointwise: tuple[float, float, float]
    exchanges: tuple[float, float, float]


def passes_of(plan: TrainingPlan, workload: TrainingWorkload, stage_layers: float) -> Passes:
    """Repetitions by choice of ``plan``. Adapters leave out the weight gradients of frozen matrices.

    Numbers from ``data/coefficients/training_step.toml``.
    """
    mode, parts = plan.recompute.mode, plan.recompute.parts if plan.recompute.mode == "selective" else ()
    share = 1.0
    if plan.recompute.layers is not None and stage_layers > 0:
        share = min(plan.recompute.layers / stage_layers, 1.0)
    whole = share if mode == "full" else 0.0
    numbers, again = step_numbers()["passes"], step_numbers()["recomputed"]
    every_second = again["op"] if mode == "op" else 0.0
    weight = 0.0 if workload.trains_adapters else 1.0
    back = numbers["attention_backward_unfused" if plan.attention == "eager" else "attention_backward_fused"]
    norms = again["layernorm"] if "layernorm" in parts else 0.0
    tiled = 1.0 if plan.mlp_tiles > 1 and "mlp" not in parts else 0.0
    return Passes(
        linears=(1.0, weight, whole + every_second + (again["mla_up_proj"] if "mla_up_proj" in parts else 0.0)),
        feed_forward=(1.0, weight, whole + every_second + (1.0 if {"mlp", "moe"} & set(parts) else 0.0) + tiled),
        experts=(1.0, weight, whole + (1.0 if "moe" in parts else 0.0)),
        attention=(back, 0.0, whole + (1.0 if "core_attn" in parts else 0.0)),
        pointwise=(
            numbers["pointwise_backward"],
            0.0,
            min(whole + norms + (again["moe_act"] if "moe_act" in parts else 0.0) + every_second, 1),
        ),
        exchanges=(1.0, 0.0, whole + (1.0 if "moe" in parts else 0.0)),
    )


@cache
def step_numbers() -> Mapping[str, Any]:
    """``data/coefficients/training_step.toml`` as read: shares and factors without a unit, numbers."""
    return read_data("coefficients/training_step.toml")
