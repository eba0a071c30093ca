"""Seconds of one pipeline stage: passes of the layers, the head, and what is communicated beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trilemma.timing.attention import OperatorWork
from trilemma.timing.roofline import operator_time_s
from trilemma.timing.training_collectives import Volume
from trilemma.timing.training_loads import Loads
from trilemma.timing.training_passes import Passes, step_numbers


def stage_seconds(loads: Loads, rate: Mapping[str, Any], done: Passes) -> dict[str, Any]:
    """Seconds of one micro-batch on the layers of one stage, forward, both gradients and recompute.

    Launches are issued beside kernels (`joined_seconds`): of small micro-batches they are what lasts, of large ones they hide.

    Numbers or arrays (plans,). Source: counts of passes and numbers of ``data/coefficients/training_step.toml``.
    """
    one = _one_pass(loads, rate)
    again = sum(one[name] * getattr(done, _REPEATS[name])[2] for name in one)
    lines = {name: one[name] * (1 + sum(getattr(done, _REPEATS[name])[:2])) for name in one}
    repeats = 1 + sum(done.linears[:2]) * step_numbers()["passes"]["launches_of_a_gradient"] + done.linears[2]
    power = 1.0 + rate["power_launch"]
    kernels = sum(lines.values()) + again
    issued = loads.launches * rate["launch"] * repeats
    return {
        "linear": lines["linear"] + lines["feed_forward"] + lines["plain"],
        "experts": lines["experts"],
        "attention": lines["attention"],
        "scan": lines["scan"],
        "elementwise": lines["pointwise"],
        "quantisation": lines["casts"],
        "recompute": again,
        "launches": joined_seconds(kernels, issued, power) - kernels,
    }


#: Whose repetitions each operator follows.
_REPEATS = {
    "linear": "linears", "feed_forward": "feed_forward", "plain": "linears", "experts": "experts", "attention": "attention",
    "scan": "attention", "pointwise": "pointwise", "casts": "linears",
}  # fmt: skip


def _one_pass(loads: Loads, rate: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of every kind of operator in one forward pass of one micro-batch."""
    power = 1.0 + rate["power_roofline"]

    def product(work: OperatorWork, flops_per_s: Any) -> Any:
        return operator_time_s(work.flops, work.bytes, flops_per_s=flops_per_s, bytes_per_s=rate["stream"], power=power)

    attention = (loads.attention.flops + rate["narrow"] * loads.attention_narrow) / rate["attention"]
    return {
        "linear": product(loads.linear, rate["linear"]),
        "feed_forward": product(loads.feed_forward, rate["linear"]),
        "plain": product(loads.plain, rate["plain"]),
        "experts": product(loads.experts, rate["expert"]),
        "attention": attention + loads.attention.bytes / rate["pointwise"],
        "scan": loads.scan / rate["scan"],
        "pointwise": loads.pointwise / rate["pointwise"],
        "casts": loads.casts / rate["casts"],
    }


def head_seconds(loads: Loads, rate: Mapping[str, Any]) -> Any:
    """Seconds of logits and loss of one micro-batch: three products in 16 bits, and the passes over logits.

    Numbers or arrays (plans,). Source: definition; rates of ``data/coefficients/training_time.json``.
    """
    power = 1.0 + rate["power_roofline"]
    work = loads.head
    product = operator_time_s(
        work.flops, work.bytes, flops_per_s=rate["plain"], bytes_per_s=rate["stream"], power=power
    )
    return (2.0 + loads.passes.linears[1]) * product + loads.logits / rate["logits"]


def communication_seconds(
    loads: Loads, rate: Mapping[str, Any], done: Passes, stage: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exposed seconds of collectives of one micro-batch on the layers of a stage, and the hidden ones.

    Numbers or arrays (plans,). Source: Megatron-LM's collectives by layer; rates of ``data/coefficients/training_time.json``.
    """
    forward, backward, again = loads.tensor_volumes
    volumes = forward + backward + again * done.exchanges[2]
    trades = 2.0 * (1 + done.exchanges[0] + done.exchanges[2])
    power = 1.0 + rate["power_overlap"]
    tensor = volumes * (wire_seconds(loads.tensor, rate, "tensor") + loads.tensor_calls * rate["call"])
    expert = trades * (wire_seconds(loads.experts_exchange, rate, "expert") + loads.expert_calls * rate["call"])
    beside = sum(stage.values()) * loads.expert_overlap
    traded = joined_seconds(beside, expert, power) - beside
    context = (1 + 2 + done.attention[2]) * wire_seconds(loads.context, rate, "context")
    shown = joined_seconds(stage["attention"], context, power) - stage["attention"]
    lines = {
        "tensor_parallel": tensor,
        "expert_exchange": traded,
        "context_parallel": shown,
        "pipeline_exchange": wire_seconds(loads.pipeline, rate, "pipeline"),
    }
    return lines, {"context_parallel": context - shown, "expert_exchange": expert - traded}


def by_pass(loads: Loads, rate: Mapping[str, Any], done: Passes, slow: Any, head: Any, scale: Any) -> dict[str, Any]:
    """The slowest stage's micro-batch split by pass; what belongs to none (launches, collectives) in proportion.

    Seconds, numbers or arrays (plans,). Source: definition.
    """
    one = _one_pass(loads, rate)
    parts = [sum(one.values())]
    parts += [sum(one[name] * getattr(done, _REPEATS[name])[at] for name in one) for at in range(3)]
    third = head / (2.0 + done.linears[1])
    with_head = [parts[0] * scale + third, parts[1] * scale + third, parts[2] * scale + third * done.linears[1]]
    with_head.append(parts[3] * scale)
    whole = np.maximum(sum(with_head), 1e-30)
    names = ("forward", "input_gradient", "weight_gradient", "recompute")
    return {name: part / whole * slow for name, part in zip(names, with_head, strict=True)}


def wire_seconds(volume: Volume, rate: Mapping[str, Any], name: str) -> Any:
    """Seconds to move bytes over both wires at once: the slower of the two counts.

    Numbers or arrays (plans,). Source: definition; rates of ``data/coefficients/training_time.json``.
    """
    return np.maximum(volume[0] / rate[f"{name}_near"], volume[1] / rate[f"{name}_far"])


def joined_seconds(work_s: Any, transfer_s: Any, power: Any) -> Any:
    """Work and transfer side by side: the ``power``-norm, their sum at 1 and the longer one at infinity.

    Seconds, numbers or arrays (plans,). Source: definition.
    """
    larger = np.maximum(np.maximum(work_s, transfer_s), 1e-30)
    return larger * ((work_s / larger) ** power + (transfer_s / larger) ** power) ** (1.0 / power)
