"""Seconds of one optimizer step of training as named exposed lines, for one plan or a table of plans, by one code path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans.training import Schedule, TrainingPlan
from trilemma.quantities import Numbers
from trilemma.timing.flops_conventions import model_flops_per_token
from trilemma.timing.roofline import peak_flops
from trilemma.timing.schedules import bubble_s
from trilemma.timing.stage_shares import BOTH_ENDS
from trilemma.timing.training_coefficients import TrainingSetting, rates
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_frameworks import FrameworkTiming
from trilemma.timing.training_loads import Loads, training_loads
from trilemma.timing.training_operators import TrainingWork, run_work, training_work
from trilemma.timing.training_stage import (
    by_pass,
    communication_seconds,
    head_seconds,
    joined_seconds,
    stage_seconds,
    wire_seconds,
)
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

    def slowed(self, factors: Mapping[str, float]) -> StepTime:
        """The same step where lines take ``factors`` times as long: by the name of a line, else by that of its resource.
        Collectives that ran beside what is slower now run beside it still."""
        times = {name: factors.get(name, factors.get(_RESOURCE[name], 1.0)) for name in self.lines}
        lines = {name: seconds * times[name] for name, seconds in self.lines.items()}
        step_s = sum(lines.values())
        kept = self.step_s / step_s
        return replace(
            self,
            step_s=step_s,
            lines=lines,
            resources=by_resource(lines),
            passes={name: seconds * factors.get("compute", 1.0) for name, seconds in self.passes.items()},
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu * kept,
            mfu=self.mfu * kept,
            hfu=self.hfu * kept,
        )

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
    run = run_work(model, implementation=plan.implementation, mtp=plan.mtp)
    loads = training_loads(run, plan, workload, fabric, dispatcher=setting.dispatcher)
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
    attention, what moves to the host and back with the computation that hides none of these: exposed is
    ``(work^q + transfer^q)^(1/q) − work``.

    Sources: Korthikanti et al. 2022 and Narayanan et al. 2021 for what a step holds; Williams et al. 2009 for the
    roofline.
    """
    done = loads.passes
    pp = np.asarray(layout_pp, dtype=float)
    stage = stage_seconds(loads, rate, done)
    head = head_seconds(loads, rate)
    comm, beside = communication_seconds(loads, rate, done, stage)
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
    passes = by_pass(loads, rate, done, slow, head * with_head, scale)
    idle = bubble_s(
        schedule, pp=pp, vpp=layout_vpp, micro_batches=count, slowest_s=slow,
        forward_s=passes["forward"], input_gradient_s=passes["input_gradient"] + passes["recompute"],
        weight_gradient_s=passes["weight_gradient"],
        all_stages_s=np.where(pp > 1, loads.others_share * on_layers + last, slow),
    )  # fmt: skip
    lines["bubble"] = idle * soft
    power = 1.0 + rate["power_overlap"]
    busy = slow * count
    sharding = loads.shard_times * wire_seconds(loads.shard, rate, "shard")
    data = wire_seconds(loads.data, rate, "data") + loads.data_calls * rate["call"]
    lines["sharded_weights"] = (joined_seconds(busy, sharding, power) - busy) * soft
    left = np.maximum(
        busy - sharding + lines["sharded_weights"] / soft, 0.0
    )  # a second that hides one transfer hides no other
    window = np.minimum(slow * overlap_data, left)
    lines["data_parallel"] = (joined_seconds(window, data, power) - window) * soft
    lines["optimizer"] = loads.optimizer / rate["optimizer"] * soft
    products = loads.newton_schulz
    lines["newton_schulz"] = (products.flops / rate["plain"] + products.bytes / rate["stream"]) * soft
    lines["host_optimizer"] = loads.host_optimizer / rate["host_optimizer"]
    beside_bytes, after_bytes = _over_host_link(loads, moved_bytes)
    moving = beside_bytes / rate["host"] + 0.0 * busy
    free = np.maximum(left - data + lines["data_parallel"] / soft, 0.0)
    shown = joined_seconds(free, moving, power) - free
    lines["offload"] = shown + after_bytes / rate["host"]
    lines["step"] = rate["step"] + 0.0 * slow
    far = np.log2(np.maximum(np.asarray(gpus, dtype=float) / 8, 1.0))
    lines["stragglers"] = rate["straggle"] * far * busy * soft
    hidden = {
        "sharded_weights": sharding * soft - lines["sharded_weights"],
        "data_parallel": data * soft - lines["data_parallel"],
        "offload": moving - shown,
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
    flops = model_flops_per_token(
        work, workload.attended, convention, trains_adapters=workload.trains_adapters, tied=tied
    )
    peak = peak_flops(cluster.accelerator, "bf16")
    return StepTime(
        step_s=step,
        lines=lines,
        hidden=hidden,
        resources=by_resource(lines),
        passes=passes,
        tokens_per_s_per_gpu=per_gpu,
        flops_per_token=flops,
        mfu=per_gpu * flops / peak,
        hfu=per_gpu * (flops + recomputed_flops_per_token(loads)) / peak,
        convention=convention,
        peak_format="bf16",
    )


def by_resource(lines: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of ``lines`` by the resource that each spends, numbers or arrays (plans,). Source: by definition."""
    found: dict[str, Any] = dict.fromkeys(
        ("compute", "memory_bandwidth", "interconnect", "host"), 0.0 * sum(lines.values())
    )
    for name, seconds in lines.items():
        found[_RESOURCE[name]] = found[_RESOURCE[name]] + seconds
    return found


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
