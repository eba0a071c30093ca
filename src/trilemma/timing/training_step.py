"""Seconds of one optimizer step of training as named exposed lines, for one plan or a table of plans, by one code path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans.training import Schedule, TrainingPlan
from trilemma.quantities import Numbers
from trilemma.timing.attention import OperatorWork
from trilemma.timing.flops_conventions import model_flops_per_token
from trilemma.timing.roofline import operator_time_s, peak_flops
from trilemma.timing.schedules import bubble_s
from trilemma.timing.stage_shares import BOTH_ENDS
from trilemma.timing.training_coefficients import FrameworkTiming, TrainingSetting, rates
from trilemma.timing.training_collectives import Fabric, Volume
from trilemma.timing.training_loads import Loads, Passes, training_loads
from trilemma.timing.training_operators import TrainingWork, training_work
from trilemma.workloads import TrainingWorkload

#: Lines of a step in the order in which they are shown.
STEP_LINES = (
    "linear", "experts", "attention", "scan", "elementwise", "quantisation", "logits", "recompute", "launches",
    "tensor_parallel", "expert_exchange", "context_parallel", "pipeline_exchange", "sharded_weights", "data_parallel",
    "bubble", "optimizer", "newton_schulz", "host_optimizer", "offload", "stragglers", "step", "loading",
)  # fmt: skip
#: Which resource each line spends.
_RESOURCE = {
    "linear": "compute", "experts": "compute", "attention": "compute", "scan": "compute", "elementwise": "memory_bandwidth",
    "quantisation": "memory_bandwidth", "logits": "compute", "recompute": "compute", "launches": "host",
    "tensor_parallel": "interconnect", "expert_exchange": "interconnect", "context_parallel": "interconnect",
    "pipeline_exchange": "interconnect", "sharded_weights": "interconnect", "data_parallel": "interconnect",
    "bubble": "compute", "optimizer": "memory_bandwidth", "newton_schulz": "compute", "host_optimizer": "host",
    "offload": "interconnect", "stragglers": "interconnect", "step": "host", "loading": "host",
}  # fmt: skip
COMMUNICATION = (
    "tensor_parallel", "expert_exchange", "context_parallel", "pipeline_exchange", "sharded_weights", "data_parallel",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """One optimizer step. ``lines`` are exposed seconds and sum to ``step_s``; ``hidden`` seconds of collectives ran beside
    computation and stand apart. ``passes``: seconds of forward, input gradient, weight gradient and recompute of one
    micro-batch on the slowest stage.

    ``mfu`` counts the FLOPs of ``convention`` against the dense peak of ``peak_format``; ``hfu`` adds recompute. Fractions
    are of the step. All numbers or arrays (plans,).
    """

    step_s: Any
    lines: Mapping[str, Any]
    hidden: Mapping[str, Any]
    resources: Mapping[str, Any]
    passes: Mapping[str, Any]
    tokens_per_s_per_gpu: Any
    flops_per_token: float
    mfu: Any
    hfu: Any
    convention: str
    peak_format: str

    @property
    def communication_fraction(self) -> Any:
        """Exposed collectives over the step."""
        return sum(self.lines[name] for name in COMMUNICATION) / self.step_s

    @property
    def hidden_communication_fraction(self) -> Any:
        return (
            sum((self.hidden[name] for name in COMMUNICATION if name in self.hidden), 0.0 * self.step_s) / self.step_s
        )

    @property
    def bubble_fraction(self) -> Any:
        return self.lines["bubble"] / self.step_s

    def bottleneck(self) -> Any:
        """The resource that most of the step is spent on (name, or array of names)."""
        names = tuple(self.resources)
        stacked = np.stack(np.broadcast_arrays(*(np.asarray(self.resources[name]) for name in names)))
        return np.asarray(names)[stacked.argmax(axis=0)]


def training_step(
    model: Model,
    cluster: Cluster,
    plan: TrainingPlan,
    workload: TrainingWorkload,
    *,
    framework: FrameworkTiming | None = None,
    era: str = "",
    convention: str = "causal",
    moved_bytes: Mapping[str, Numbers] | None = None,
    loading_s: Numbers = 0.0,
) -> StepTime:
    """Predict the step of ``plan``; numbers of the plan may be arrays (plans,), its choices are scalars.

    ``framework`` and ``era`` name whose fitted coefficients hold (default: the newest of the plan's implementation).
    ``moved_bytes`` are bytes over the host link in one step for
    "activations" and "weights" (beside computation) and "optimizer" (after it), as `memory.training` counts them; without them
    an offloaded optimizer is counted here and nothing else. ``loading_s`` is what the loader takes for the batch of one step
    on one rank: loaders run ahead, so only what exceeds the step shows. Raises `InputError` for unknown conventions or schedules
    and for cards without a stated peak.
    """
    work = training_work(model, mtp=plan.mtp)
    fabric = Fabric.of(cluster)
    setting = TrainingSetting.of(plan, cluster, mixture=work.is_mixture, framework=framework, era=era)
    loads = training_loads(work, plan, workload, fabric, overlap_expert=setting.framework.overlap_expert)
    lines, hidden, passes = step_lines(
        loads, rates(setting), schedule=plan.schedule, layout_pp=plan.layout.pp, layout_vpp=plan.layout.vpp,
        gpus=plan.layout.gpus, overlap_data=setting.overlap_data, moved_bytes=moved_bytes,
    )  # fmt: skip
    step = sum(lines.values())
    lines["loading"] = np.maximum(np.asarray(loading_s, dtype=float) - step, 0.0)
    return _summary(work, workload, cluster, loads, lines, hidden, passes, convention, model.tied_embeddings)


def step_lines(
    loads: Loads,
    rate: Mapping[str, Any],
    *,
    schedule: Schedule,
    layout_pp: Numbers,
    layout_vpp: Numbers,
    gpus: Numbers,
    overlap_data: bool | Any,
    moved_bytes: Mapping[str, Numbers] | None = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(exposed lines, hidden seconds, seconds by pass): the whole formula of a step, from counts and rates.

    Rates may be arrays too, which is how they are fitted. Per micro-batch and stage: operators (roofline with a rounded
    ridge), launches, collectives in the critical path. The slowest stage sets the pace: the last one, when logits outweigh the
    layers it is spared. Sharded weights overlap with all computation of a step, gradients and updated weights of replicas with
    that of one micro-batch (only the last one's backward and the next one's forward can hide them), context exchange with
    attention: exposed is ``(work^q + transfer^q)^(1/q) − work``.

    Sources: Korthikanti et al. 2022 and Narayanan et al. 2021 for what a step holds; Williams et al. 2009 for the
    roofline.
    """
    done = loads.passes
    pp = np.asarray(layout_pp, dtype=float)
    stage = _stage(loads, rate, done)
    head = _head(loads, rate)
    comm, beside = _communication(loads, rate, done, stage)
    on_layers = sum(stage.values()) + sum(comm.values())
    last = on_layers * loads.last_share + head
    if schedule in BOTH_ENDS:
        last = (on_layers + last) / 2
    is_last = (pp > 1) & (last > on_layers)
    part = (1.0 + loads.last_share) / 2 if schedule in BOTH_ENDS else loads.last_share
    scale = np.where(is_last, part, 1.0)
    with_head = np.where(pp > 1, is_last, True) * np.where((pp > 1) & (schedule in BOTH_ENDS), 0.5, 1.0)
    slow = on_layers * scale + head * with_head
    count, soft = loads.micro_batches, 1.0 / rate["software"]
    lines = {name: value * scale * count * soft for name, value in {**stage, **comm}.items()}
    lines["logits"] = head * with_head * count * soft
    passes = _by_pass(loads, rate, done, slow, head * with_head, scale)
    idle = bubble_s(
        schedule, pp=pp, vpp=layout_vpp, micro_batches=count, slowest_s=slow,
        forward_s=passes["forward"], input_gradient_s=passes["input_gradient"] + passes["recompute"],
        weight_gradient_s=passes["weight_gradient"],
        all_stages_s=np.where(pp > 1, loads.others_share * on_layers + last, slow),
    )  # fmt: skip
    lines["bubble"] = idle * soft
    power = 1.0 + rate["power_overlap"]
    busy = slow * count
    sharding = loads.shard_times * _wire(loads.shard, rate, "shard")
    data = _wire(loads.data, rate, "data") + loads.data_calls * rate["call"]
    lines["sharded_weights"] = (_joined(busy, sharding, power) - busy) * soft
    window = slow * overlap_data
    lines["data_parallel"] = (_joined(window, data, power) - window) * soft
    lines["optimizer"] = loads.optimizer / rate["optimizer"] * soft
    products = loads.newton_schulz
    lines["newton_schulz"] = (products.flops / rate["plain"] + products.bytes / rate["stream"]) * soft
    lines["host_optimizer"] = loads.host_optimizer / rate["host_optimizer"]
    beside_bytes, after_bytes = _over_host_link(loads, moved_bytes)
    moving = beside_bytes / rate["host"] + 0.0 * busy
    lines["offload"] = _joined(busy, moving, power) - busy + after_bytes / rate["host"]
    lines["step"] = rate["step"] + 0.0 * slow
    far = np.log2(np.maximum(np.asarray(gpus, dtype=float) / 8, 1.0))
    lines["stragglers"] = rate["straggle"] * far * busy * soft
    hidden = {
        "sharded_weights": sharding * soft - lines["sharded_weights"],
        "data_parallel": data * soft - lines["data_parallel"],
        "offload": moving - (_joined(busy, moving, power) - busy),
        **{name: value * scale * count * soft for name, value in beside.items()},
    }
    ordered = {name: lines[name] for name in STEP_LINES if name in lines}
    return ordered, hidden, {name: value * soft for name, value in passes.items()}


def _over_host_link(loads: Loads, moved_bytes: Mapping[str, Numbers] | None) -> tuple[Any, Any]:
    """Bytes over the host link beside computation (activations, weights) and after it (optimizer state)."""
    if moved_bytes is None:
        return 0.0, loads.offload
    beside = [np.asarray(value, dtype=float) for name, value in moved_bytes.items() if name != "optimizer"]
    return sum(beside, start=np.float64(0.0)), moved_bytes.get("optimizer", 0.0)


def _stage(loads: Loads, rate: Mapping[str, Any], done: Passes) -> dict[str, Any]:
    """Seconds of one micro-batch on the layers of one stage, forward, both gradients and recompute."""
    one = _one_pass(loads, rate)
    again = sum(one[name] * getattr(done, _REPEATS[name])[2] for name in one)
    lines = {name: one[name] * (1 + sum(getattr(done, _REPEATS[name])[:2])) for name in one}
    repeats = 1 + sum(done.linears[:2]) * 0.75 + done.linears[2]
    return {
        "linear": lines["linear"] + lines["feed_forward"] + lines["plain"],
        "experts": lines["experts"],
        "attention": lines["attention"],
        "scan": lines["scan"],
        "elementwise": lines["pointwise"],
        "quantisation": lines["casts"],
        "recompute": again,
        "launches": loads.launches * rate["launch"] * repeats,
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


def _head(loads: Loads, rate: Mapping[str, Any]) -> Any:
    """Seconds of logits and loss of one micro-batch: three products in 16 bits, and the passes over logits."""
    power = 1.0 + rate["power_roofline"]
    work = loads.head
    product = operator_time_s(
        work.flops, work.bytes, flops_per_s=rate["plain"], bytes_per_s=rate["stream"], power=power
    )
    return (2.0 + loads.passes.linears[1]) * product + loads.logits / rate["logits"]


def _communication(
    loads: Loads, rate: Mapping[str, Any], done: Passes, stage: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exposed seconds of collectives of one micro-batch on the layers of a stage, and the hidden ones."""
    forward, backward, again = loads.tensor_volumes
    volumes = forward + backward + again * done.exchanges[2]
    trades = 2.0 * (1 + done.exchanges[0] + done.exchanges[2])
    power = 1.0 + rate["power_overlap"]
    tensor = volumes * (_wire(loads.tensor, rate, "tensor") + loads.tensor_calls * rate["call"])
    expert = trades * (_wire(loads.experts_exchange, rate, "expert") + loads.expert_calls * rate["call"])
    beside = sum(stage.values()) * loads.expert_overlap
    traded = _joined(beside, expert, power) - beside
    context = (1 + 2 + done.attention[2]) * _wire(loads.context, rate, "context")
    shown = _joined(stage["attention"], context, power) - stage["attention"]
    lines = {
        "tensor_parallel": tensor,
        "expert_exchange": traded,
        "context_parallel": shown,
        "pipeline_exchange": _wire(loads.pipeline, rate, "pipeline"),
    }
    return lines, {"context_parallel": context - shown, "expert_exchange": expert - traded}


def _by_pass(loads: Loads, rate: Mapping[str, Any], done: Passes, slow: Any, head: Any, scale: Any) -> dict[str, Any]:
    """The slowest stage's micro-batch split by pass; what belongs to none (launches, collectives) in proportion."""
    one = _one_pass(loads, rate)
    parts = [sum(one.values())]
    parts += [sum(one[name] * getattr(done, _REPEATS[name])[at] for name in one) for at in range(3)]
    third = head / (2.0 + done.linears[1])
    with_head = [parts[0] * scale + third, parts[1] * scale + third, parts[2] * scale + third * done.linears[1]]
    with_head.append(parts[3] * scale)
    whole = np.maximum(sum(with_head), 1e-30)
    names = ("forward", "input_gradient", "weight_gradient", "recompute")
    return {name: part / whole * slow for name, part in zip(names, with_head, strict=True)}


def _wire(volume: Volume, rate: Mapping[str, Any], name: str) -> Any:
    """Seconds to move bytes over both wires at once: the slower of the two counts."""
    return np.maximum(volume[0] / rate[f"{name}_near"], volume[1] / rate[f"{name}_far"])


def _joined(work_s: Any, transfer_s: Any, power: Any) -> Any:
    """Work and transfer side by side: the ``power``-norm, their sum at 1 and the longer one at infinity."""
    larger = np.maximum(np.maximum(work_s, transfer_s), 1e-30)
    return larger * ((work_s / larger) ** power + (transfer_s / larger) ** power) ** (1.0 / power)


def _summary(
    work: TrainingWork,
    workload: TrainingWorkload,
    cluster: Cluster,
    loads: Loads,
    lines: Mapping[str, Any],
    hidden: Mapping[str, Any],
    passes: Mapping[str, Any],
    convention: str,
    tied: bool,
) -> StepTime:
    step = sum(lines.values())
    per_gpu = loads.tokens / step
    flops = model_flops_per_token(work, workload.seq, convention, trains_adapters=workload.trains_adapters, tied=tied)
    peak = peak_flops(cluster.accelerator, "bf16")
    resources: dict[str, Any] = dict.fromkeys(("compute", "memory_bandwidth", "interconnect", "host"), 0.0 * step)
    for name, seconds in lines.items():
        resources[_RESOURCE[name]] = resources[_RESOURCE[name]] + seconds
    return StepTime(
        step_s=step,
        lines=lines,
        hidden=hidden,
        resources=resources,
        passes=passes,
        tokens_per_s_per_gpu=per_gpu,
        flops_per_token=flops,
        mfu=per_gpu * flops / peak,
        hfu=per_gpu * (flops + recomputed_flops_per_token(loads)) / peak,
        convention=convention,
        peak_format="bf16",
    )


def recomputed_flops_per_token(loads: Loads) -> Any:
    """FLOPs done again per trained token and GPU: the forward FLOPs of what recompute names, on every stage alike.

    Numbers or arrays (plans,). Source: Korthikanti et al. 2022, section 5 (hardware FLOPs).
    """
    done = loads.passes
    again = (
        (loads.linear.flops + loads.plain.flops) * done.linears[2]
        + loads.feed_forward.flops * done.feed_forward[2]
        + loads.experts.flops * done.experts[2]
        + (loads.attention.flops + loads.scan) * done.attention[2]
    )
    return again * loads.micro_batches / loads.tokens
