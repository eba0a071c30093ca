"""One training plan in full: memory of the worst rank, seconds a step, whether it fits, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from trilemma.errors import InputError, PlanWarning
from trilemma.estimate.doubt import doubted, of_model, of_trained_class
from trilemma.estimate.estimate import Bottleneck, Estimate, Latency, MemoryEstimate, Resource, SpeedEstimate
from trilemma.estimate.example_lengths import of_capped_lengths, with_documents
from trilemma.estimate.paging import paged_out
from trilemma.estimate.power import training_activity, training_power
from trilemma.estimate.training_length import costed, run_of
from trilemma.estimate.training_verdict import host_need, training_verdict
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.number_formats import training_lacks
from trilemma.hardware.price import price_warnings
from trilemma.intervals import Interval
from trilemma.memory.training import TrainingMemory, training_memory
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans.frameworks import check_vendor
from trilemma.plans.training import TrainingPlan
from trilemma.question import TrainingQuestion
from trilemma.timing.training_capped import step_under_cap
from trilemma.timing.training_coefficients import TrainingSetting, most_of_bf16, unknown_terms
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_frameworks import FrameworkTiming, framework_of
from trilemma.timing.training_intervals import step_ranges_in_words, step_spread, with_cap, with_host, with_slow_wire
from trilemma.timing.training_run import Checkpoints, Failures
from trilemma.timing.training_step import StepTime, training_step
from trilemma.workloads import TrainingWorkload


def estimate_training(
    question: TrainingQuestion,
    *,
    framework: FrameworkTiming | None = None,
    era: str = "",
    convention: str = "causal",
    failures: Failures | None = None,
    checkpoints: Checkpoints | None = None,
    loading_s: float = 0.0,
) -> Estimate:
    """What the plan of ``question`` costs: ledger, verdict, step time by line, throughput, MFU, price and power.

    The verdict compares reserved bytes and what lies outside the allocator with the card's runtime total, and what lies on the
    host with its memory; what is not counted takes its share of doubt. ``workload.tokens`` adds the length of the run,
    under ``failures`` where these are given, its ``checkpoints`` written so. Raises `InputError` for layouts that cannot be.
    """
    model, cluster, workload, plan = question.model, question.cluster, question.workload, question.plan
    check_vendor(plan.implementation, cluster.accelerator)
    check_training_layout(model, cluster, plan, workload)
    memory, paged = paged_out(model, cluster, plan, workload, training_memory(model, cluster, plan, workload))

    def timed(load: TrainingWorkload) -> StepTime:
        return training_step(
            model, cluster, plan, load, framework=framework, era=era, convention=convention,
            moved_bytes=memory.moved_bytes or None, loading_s=loading_s,
        )  # fmt: skip

    mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    chosen = framework or framework_of(plan)
    setting = TrainingSetting.of(plan, cluster, mixture=mixture, framework=chosen, era=era)
    most = most_of_bf16(setting)
    free = timed(workload)
    step, clock = step_under_cap(free, cluster, training_activity(float(free.hfu) / most))
    capacity = cluster.accelerator.runtime_total()
    host = host_need(memory, cluster)
    lacks = training_lacks(plan.recipe.matmul, cluster.accelerator)
    verdict = training_verdict(memory, capacity, host, pages=plan.optimizer.paged)
    low, high = step_spread(chosen, cluster.accelerator, mixture=mixture)
    low, high = with_host(step, low, high)
    low, high = with_slow_wire(step, Fabric.of(cluster), low, high)
    low, high, packed = with_documents(question, lambda load: float(timed(load).step_s), low, high)
    if not packed:  # no step is faster than its products at their peak
        low = max(low, min(float(step.hfu) / most, 1.0))
    low, high = with_cap(clock, low, high)
    told_by = step_ranges_in_words(chosen, cluster.accelerator, mixture=mixture)
    speed = replace(_speed(step, low, high), ranges=told_by)
    hour = cluster.accelerator.usd_per_hour.scaled(cluster.gpus) if cluster.accelerator.usd_per_hour else None
    per_s = float(step.tokens_per_s_per_gpu) * cluster.gpus
    power = training_power(cluster, float(step.hfu) / most, speed.tokens_per_s_per_gpu, clock=clock)
    told = (
        *memory.warnings,
        *cluster.warnings,
        *price_warnings((cluster.accelerator,)),
        *_warnings(question, setting),
        *packed,
        *paged,
        *(of_capped_lengths(question, memory, cluster, capacity) if verdict.stage != "ok" else ()),
    )
    return Estimate(
        question=question,
        version=plan.version or "",
        verdict=doubted(verdict, told),
        memory=_memory(memory, capacity),
        speed=speed,
        bottleneck=_bottleneck(step),
        usd_per_hour=hour,
        usd_per_million_tokens=_per_million(hour, per_s, low, high),
        watts=power.watts if power else None,
        joules_per_token=power.joules_per_token if power else None,
        warnings=told,
        ranks=_ranks(memory),
        training_step=_lines(step),
        host_memory={} if host is None else host.document,
        refused=() if lacks is None else (lacks,),
        training_run=costed(
            run_of(workload, step, low, high, cluster, memory, failures, checkpoints, plan),
            hour,
            power.watts if power else None,
        ),
    )


def check_training_layout(model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload) -> None:
    """Raises `InputError`, naming the value and what would be right, for a layout that no framework runs."""
    layout = plan.layout
    if layout.is_table:
        raise InputError("an estimate is of one plan; give numbers, not tables of them")
    tp, pp, dp, cp, ep = (int(one) for one in (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep))
    if tp * pp * dp * cp != cluster.gpus:
        raise InputError(
            f"`tp` {tp} x `pp` {pp} x `dp` {dp} x `cp` {cp} is {tp * pp * dp * cp} GPUs, but there are {cluster.gpus}; give"
            f" `dp` {max(cluster.gpus // max(tp * pp * cp, 1), 1)} or change the others"
        )
    layers = len(model.layers)
    if pp * int(layout.vpp) > layers + 2:
        raise InputError(
            f"`pp` {pp} x `vpp` {layout.vpp} is more stages than the {layers} layers of {model.name}; give at most {layers}"
        )
    if (tp * dp * cp) % ep:
        raise InputError(
            f"`ep` {ep} does not divide the {tp * dp * cp} ranks of a stage (tp x dp x cp); give a divisor"
        )
    micro = int(plan.micro_batch) * dp
    if workload.global_batch % micro:
        raise InputError(
            f"`micro_batch` {plan.micro_batch} x `dp` {dp} does not divide `global_batch` {workload.global_batch}; give a"
            f" multiple of {micro}, such as {max(workload.global_batch // micro, 1) * micro}"
        )


def _memory(memory: TrainingMemory, capacity: Interval) -> MemoryEstimate:
    outside, need = float(memory.outside_bytes), float(memory.device_bytes)
    reserved = memory.reserved
    return MemoryEstimate(
        capacity_bytes=int(capacity.value),
        usable_bytes=int(capacity.value - outside),
        total=Interval(
            value=need,
            low=min(reserved.low + outside, need),
            high=max(reserved.high + outside, need) + float(memory.uncounted_bytes + memory.either_bytes),
        ),
        ledger=memory.ledger,
    )


def _speed(step: StepTime, low: float, high: float) -> SpeedEstimate:
    def slower(value: Any) -> Interval:
        one = float(value)
        return Interval(value=one, low=one * low, high=one * high)

    def faster(value: Any) -> Interval:
        one = float(value)
        return Interval(value=one, low=one / high, high=one / low)

    return SpeedEstimate(
        step_s=Latency(interval=slower(step.step_s)),
        tokens_per_s_per_gpu=faster(step.tokens_per_s_per_gpu),
        mfu=faster(step.mfu),
        hfu=faster(step.hfu),
        comm_fraction=Interval.exact(float(step.communication_fraction)),
        bubble_fraction=Interval.exact(float(step.bubble_fraction)),
        lines={name: float(value) for name, value in step.lines.items() if float(value) > 0},
    )


def _lines(step: StepTime) -> dict[str, Any]:
    """What stands beside the lines: hidden seconds, seconds by pass, and how FLOPs are counted."""
    return {
        "hidden_s": {name: float(value) for name, value in step.hidden.items() if float(value) > 0},
        "hidden_comm_fraction": float(step.hidden_communication_fraction),
        "micro_batch_s": {name: float(value) for name, value in step.passes.items()},
        "flops_convention": step.convention,
        "flops_per_token": step.flops_per_token,
        "mfu_peak": step.peak_format,
    }


def _bottleneck(step: StepTime) -> Bottleneck:
    resource = cast(Resource, str(step.bottleneck()))
    share = float(step.resources[resource] / step.step_s)
    line = max(step.lines, key=lambda name: float(step.lines[name]))
    part = float(step.lines[line] / step.step_s)
    return Bottleneck(
        resource=resource,
        detail=f"{share:.0%} of the step; the largest line is {line.replace('_', ' ')} ({part:.0%})",
    )


def _per_million(hour: Interval | None, tokens_per_s: float, low: float, high: float) -> Interval | None:
    if hour is None:
        return None
    value = hour.value / 3600 / tokens_per_s * 1e6
    return Interval(
        value=value, low=min(hour.low / 3600 / tokens_per_s * 1e6 * low, value),
        high=max(hour.high / 3600 / tokens_per_s * 1e6 * high, value),
    )  # fmt: skip


def _warnings(question: TrainingQuestion, setting: TrainingSetting) -> tuple[PlanWarning, ...]:
    found = of_model(question.model)
    found += of_trained_class(
        question.plan.implementation,
        question.cluster.accelerator,
        adapters=question.workload.trains_adapters,
    )
    unknown = unknown_terms(setting)
    if unknown:
        text = (
            f"no measured run told the speed of {', '.join(unknown)}: shared coefficients and a wide interval are used"
        )
        found.append(PlanWarning(code="training-speed-unmeasured", message=text))
    return tuple(found)


def _ranks(memory: TrainingMemory) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {
            "pool": "train",
            "stage": rank.stage,
            "layers": rank.layers,
            "in_flight": float(rank.in_flight),
            "memory": {line.name: float(line.bytes) for line in rank.ledger},
        }
        for rank in memory.ranks
    )
