"""The chart of one estimate: memory, and where the time of a token (or of a training step) goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.estimate.estimate import Estimate, OperatorTime, SpeedEstimate
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import GIB, arrivals, counted
from trilemma.report.charts.roofline import roofline
from trilemma.report.charts.theme import BLUE, GREEN, GREY, ORANGE, RESOURCE_COLOURS, Spec, page
from trilemma.report.charts.waterfall import Mark, Step, waterfall
from trilemma.report.operators import NAMES
from trilemma.report.text import LEDGER_NAMES, title_of
from trilemma.timing.training_step import COMMUNICATION
from trilemma.workloads import TrainingWorkload

#: Kind of memory → its colour, and the ledger lines that are of it; others are working memory.
_KINDS = {
    "weights": BLUE,
    "weights and optimizer": BLUE,
    "cache": ORANGE,
    "working memory": GREEN,
    "outside the budget": GREY,
}
_KEPT = {
    "weights",
    "master_weights",
    "optimizer",
    "gradients",
    "adapter",
    "vision",
    "draft_model",
}
#: What a training step spends its time on.
_SPENT = {"computing": BLUE, "communicating": GREEN, "waiting": GREY}
_WAITING = {"bubble", "stragglers", "launches", "step", "loading", "offload"}
_CACHES = {"kv_cache", "state_cache"}


def estimate_chart(estimate: Estimate, accelerator: Accelerator) -> Spec:
    """Roofline of its operators, memory and time per token as waterfalls; of a plan that does not start, its memory."""
    return page(title_of(estimate), subtitle(estimate), [*panels(estimate, accelerator)])


def panels(estimate: Estimate, accelerator: Accelerator) -> Iterator[Spec]:
    speed = estimate.speed
    if speed is not None and speed.operators:
        found = roofline(speed.operators, accelerator)
        if found is not None:
            yield found
        yield _token(estimate, speed)
    elif speed is not None and speed.step_s is not None and speed.lines:
        yield _training_step(speed)
    yield _memory(estimate)


def engine_of(estimate: Estimate) -> str:
    """Engine and version."""
    return f"{estimate.question.engine} {estimate.version}".strip()


def subtitle(estimate: Estimate) -> list[str]:
    """The load in words, and the verdict."""
    load = estimate.question.workload
    words = []
    if isinstance(load, TrainingWorkload):
        words.append(f"sequences of {counted(load.seq, 'token')}, {load.global_batch:,} to a step")
    else:
        if load.isl is not None and load.osl is not None:
            words.append(f"prompts of {load.isl:,}, outputs of {counted(load.osl, 'token')}")
        if load.concurrency is not None:
            words.append(f"{counted(load.concurrency, 'request')} at once")
        if load.rate is not None:
            words.append(arrivals(load.rate))
    words += [warning.message for warning in estimate.warnings if warning.code == "assumed-load"]
    verdict = "fits" if estimate.fits else f"does not fit ({estimate.verdict.stage})"
    return (
        [", ".join(words), f"{verdict}: {estimate.verdict.reason}"]
        if words
        else [f"{verdict}: {estimate.verdict.reason}"]
    )


def _token(estimate: Estimate, speed: SpeedEstimate) -> Spec:
    assert speed.tpot_s is not None
    target = estimate.question.workload.tpot_ms
    above = [line for line in speed.operators if line.name not in ("kernels", "host")]
    notes = (
        ["dark: the same work at the datasheet's peak, bandwidth and links; whiskers: 90 % interval"] if above else []
    )
    return waterfall(
        f"Mean time per output token at batch {speed.batch or 1:,.0f}",
        [_operator_step(line) for line in sorted(speed.operators, key=lambda line: -line.seconds)],
        total="TPOT",
        interval=speed.tpot_s.interval.scaled(1e3),
        unit="milliseconds",
        scale=RESOURCE_COLOURS,
        legend="bound by",
        subtitle=[*notes, f"seconds: {', '.join(dict.fromkeys(line.source for line in speed.operators))}"],
        marks=[Mark(name=f"target {target:g} ms", at=target)] if target is not None else (),
    )


def _operator_step(line: OperatorTime) -> Step:
    return Step(
        name=NAMES.get(line.name, line.name.replace("_", " ")),
        value=line.seconds * 1e3,
        colour=line.bound_by.replace("_", " "),
        inner=None if line.roof_s is None else line.roof_s * 1e3,
    )


def _memory(estimate: Estimate) -> Spec:
    memory = estimate.memory
    kept = "weights and optimizer" if any(line.name == "optimizer" for line in memory.ledger) else "weights"
    steps = []
    for line in memory.ledger:
        value = float(line.bytes)
        steps.append(
            Step(
                name=LEDGER_NAMES.get(line.name, line.name.replace("_", " ")),
                value=value / GIB,
                colour=_kind(line, kept),
                low=min(float(line.low), value) / GIB,
                high=max(float(line.high), value) / GIB,
            )
        )
    marks = [Mark(name=f"card {memory.capacity_bytes / GIB:,.1f}", at=memory.capacity_bytes / GIB)]
    return waterfall(
        "Memory of one GPU, worst rank",
        [step for step in steps if step.value > 0 or (step.high or 0) > 0],
        total="total",
        interval=memory.total.scaled(1 / GIB),
        unit="GiB",
        scale=_KINDS,
        legend="",
        subtitle=[f"budget {memory.usable_bytes / GIB:,.1f} GiB; whiskers: 90 % intervals"],
        marks=marks,
    )


def _kind(line: Any, kept: str) -> str:
    if line.budget == "outside":
        return "outside the budget"
    return kept if line.name in _KEPT else "cache" if line.name in _CACHES else "working memory"


def _spent_on(line: str) -> str:
    return "communicating" if line in COMMUNICATION else "waiting" if line in _WAITING else "computing"


def _training_step(speed: SpeedEstimate) -> Spec:
    assert speed.step_s is not None
    lines = sorted(speed.lines.items(), key=lambda line: -line[1])
    return waterfall(
        "Where the time of a step goes",
        [Step(name=name.replace("_", " "), value=seconds, colour=_spent_on(name)) for name, seconds in lines],
        total="whole step",
        interval=speed.step_s.interval,
        unit="seconds",
        scale=_SPENT,
        legend="",
        subtitle=["exposed seconds of each line; whiskers: 90 % interval"],
        digits=2 if speed.step_s.interval.value >= 1 else 3,
    )
