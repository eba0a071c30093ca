"""A training run beside what the estimator expects of its plan: tokens a second, and the gap by cause.

Causes are what the log itself states (data loading, garbage collection, slow steps) and what a second estimate with the fault
in it puts a number on (a network over TCP, weights in FP32, nothing overlapped); the rest is named as unexplained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trilemma.diagnosis.expectation import Expectation, away, plain, shown
from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.nccl_debug import KIND as NCCL
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.estimate.estimate import Estimate
from trilemma.intervals import Interval
from trilemma.plans import Plan
from trilemma.plans.recipes import recipe
from trilemma.quantities import GIB

#: TCP in place of RDMA reached a fifth of the bandwidth (areal-project/AReaL issue 639: 5 of 25 GB/s).
_TCP_SHARE = 0.2
#: A cause below this share of the gap is not worth a word.
_NOTICED = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Seconds of a step that one fault takes, in words, and what mends it; ``sure`` where the log itself says so."""

    words: str
    seconds: float
    fix: str | None = None
    sure: bool = True


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for file, part in case.parts(KIND):
        expectation = case.expectations.get(file)
        if expectation is None or isinstance(expectation.answer.question.plan, Plan):
            continue
        speed = expectation.answer.speed
        if speed is None or speed.tokens_per_s_per_gpu is None:
            continue
        observed = tokens_per_s(part.facts, expectation.answer)
        if observed is None:
            yield Missing(what=f"a step time or a speed in {file}: its lines state neither")
        else:
            yield _finding(case, file, part, observed, speed.tokens_per_s_per_gpu, expectation)
        yield from _memory(file, part, expectation)


def tokens_per_s(facts: Mapping[str, Any], answer: Estimate) -> float | None:
    """Tokens a second and GPU of whatever figure of speed a log states."""
    load, gpus = answer.question.workload, answer.question.cluster.gpus
    if "median_tokens_per_s_per_gpu" in facts:
        return float(facts["median_tokens_per_s_per_gpu"])
    if "median_tokens_per_s" in facts:
        return float(facts["median_tokens_per_s"] / gpus)
    if "median_samples_per_s" in facts:
        return float(facts["median_samples_per_s"] * load.seq / gpus)
    if "median_step_ms" in facts and facts["median_step_ms"] > 0:
        return float(load.global_batch * load.seq / gpus / facts["median_step_ms"] * 1e3)
    return None


def _finding(case: Case, file: str, part: Part, observed: float, figure: Interval, expectation: Expectation) -> Finding:
    answer = expectation.answer
    load, gpus = answer.question.workload, answer.question.cluster.gpus
    step_s = load.global_batch * load.seq / gpus / observed
    expected_s = load.global_batch * load.seq / gpus / figure.value
    slow = away(observed, figure) < 0
    gap_s = step_s - expected_s
    causes: list[Cause] = []
    if gap_s > 0:
        causes = [one for one in _causes(case, file, part.facts, expectation, step_s) if one.seconds > _NOTICED * gap_s]
    told = _told(causes, gap_s) if slow else "as expected"
    if away(observed, figure) > 0:
        told = "faster than expected; see whether it is the command of this log, on these cards"
    best = max(causes, key=lambda one: one.seconds, default=None)
    lines = answer.speed.lines if answer.speed is not None else {}
    longest = sorted(lines.items(), key=lambda one: -one[1])[:4]
    parts = ", ".join(f"{name.replace('_', ' ')} {seconds:.3g} s" for name, seconds in longest)
    return Finding(
        id="training.throughput",
        role="symptom" if slow else "context",
        severity="warning" if slow else "context",
        claim=f"expected {shown(figure)} tokens/s a GPU ({expectation.said}; a step of {expected_s:.3g} s: {parts}), observed "
        f"{plain(observed)}, a step of {step_s:.3g} s: {told}",
        evidence=_evidence(file, part),
        expected=f"{shown(figure)} tokens/s a GPU",
        observed=f"{plain(observed)} tokens/s a GPU",
        confidence="supported" if not slow or (best is not None and best.sure) else "hypothesis",
        fix=(best.fix if best is not None and best.fix else "profile two steps of every rank and diagnose the traces")
        if slow else None,
        predicted_effect=_effect(best, step_s) if slow else None,
    )  # fmt: skip


def _evidence(file: str, part: Part) -> tuple[Evidence, ...]:
    shown_facts = {name: value for name, value in part.facts.items() if name.startswith("median_")}
    text = ", ".join(f"{name.removeprefix('median_')} {value:.5g}" for name, value in shown_facts.items())
    line = next((one.line for one in part.events if one.name == "step"), None)
    return (Evidence(file=file, line=line, value=f"medians of {part.facts['steps_logged']} steps: {text}"),)


def _told(causes: list[Cause], gap_s: float) -> str:
    sure = sum(one.seconds for one in causes if one.sure)
    named = [f"{one.seconds:.3g} s {one.words}" for one in causes]
    rest = gap_s - min(sure, gap_s)
    if rest > _NOTICED * gap_s:
        named.append(f"{rest:.3g} s that the log does not explain")
    return f"the gap is {gap_s:.3g} s a step, by cause: {'; '.join(named)}"


def _effect(best: Cause | None, step_s: float) -> str | None:
    if best is None:
        return None
    less = min(best.seconds, 0.95 * step_s)
    return f"a step of {step_s - less:.3g} s, {step_s / (step_s - less):.2f} times as fast"


def _causes(
    case: Case, file: str, facts: Mapping[str, Any], expectation: Expectation, step_s: float
) -> Iterator[Cause]:
    """Causes of which there is evidence, with the seconds of a step that each takes."""
    answer = expectation.answer
    if facts.get("median_data_s"):
        yield Cause(words="waiting for data (logged)", seconds=facts["median_data_s"],
                    fix="more loader workers, prefetching, data nearer to the node")  # fmt: skip
    mean, middle = facts.get("mean_step_ms"), facts.get("median_step_ms")
    if mean and middle and mean > middle:
        yield Cause(words="of single slow steps (mean above median)", seconds=(mean - middle) / 1e3,
                    fix="look at what recurs with them: garbage collection, checkpoints, evaluation")  # fmt: skip
    yield from _network(case, file, expectation)
    plan = answer.question.plan
    if facts.get("parameters_in") == "torch.float32" and plan.recipe.name != "fp32":
        slower = expectation.priced(
            replace(answer.question, plan=replace(plan, recipe=recipe("fp32"))),
        )
        if slower is not None:
            yield Cause(words="with parameters in FP32, as the log says", seconds=_longer(slower, answer),
                        fix="--bf16: the log says torch.float32 for parameters")  # fmt: skip
    hidden = sum(answer.training_step.get("hidden_s", {}).values())
    if hidden:
        yield Cause(
            words="if nothing of its communication were hidden", seconds=min(hidden, step_s), sure=False,
            fix="see in a trace whether collectives run beside computation",
        )  # fmt: skip


def _network(case: Case, file: str, expectation: Expectation) -> Iterator[Cause]:
    networks: Mapping[str, Any] = next(
        (part.facts.get("networks", {}) for where, part in case.parts(NCCL) if where == file), {}
    )
    cluster = expectation.answer.question.cluster
    if set(networks) != {"Socket"} or cluster.nodes < 2:
        return
    path = cluster.path(cluster.gpus)
    slow = replace(cluster, network_bytes_per_s=float(path.bytes_per_s.value) * cluster.gpus_per_node * _TCP_SHARE)
    slower = expectation.priced(replace(expectation.answer.question, cluster=slow))
    if slower is not None:
        yield Cause(
            words="over TCP in place of RDMA", seconds=_longer(slower, expectation.answer),
            fix="give NCCL the network: devices in the container, its plugin, NCCL_IB_HCA",
        )  # fmt: skip


def _longer(slower: Estimate, answer: Estimate) -> float:
    """Seconds a step by which one estimate is longer than another."""
    steps = [one.speed.step_s.interval.value for one in (slower, answer) if one.speed is not None and one.speed.step_s]
    return max(steps[0] - steps[1], 0.0) if len(steps) == 2 else 0.0


def peak_of(answer: Estimate) -> Interval:
    """What an allocator reports of the ledger: the card's total without the context, which stands outside of it."""
    total = answer.memory.total
    outside = sum(float(line.bytes) for line in answer.memory.ledger if line.name == "context")
    return Interval(value=total.value - outside, low=total.low - outside, high=max(total.high, total.value) - outside)


def _memory(file: str, part: Part, expectation: Expectation) -> Iterator[Finding]:
    """The peak that the log states beside the ledger's: reserved memory, else allocated."""
    peak = part.facts.get("peak_memory_bytes")
    if not peak:
        return
    figure = peak_of(expectation.answer)
    more = away(peak, figure)
    yield Finding(
        id="training.memory-beside-estimate",
        role="symptom" if more > 0 else "context",
        severity="warning" if more > 0.05 * figure.value else "context",
        claim=f"expected a peak of {figure.value / GIB:.2f} ({figure.low / GIB:.2f} – {figure.high / GIB:.2f}) GiB "
        f"({expectation.said}), observed {peak / GIB:.2f}: " + (
            f"the gap is {(peak - figure.value) / GIB:+.2f} GiB" if more else "as expected") + _stays(expectation),
        evidence=(Evidence(file=file, value=f"peak memory {peak / GIB:.2f} GiB"),),
        expected=f"{figure.value / GIB:.2f} ({figure.low / GIB:.2f} – {figure.high / GIB:.2f}) GiB",
        observed=f"{peak / GIB:.2f} GiB",
        confidence="supported",
        fix="a memory snapshot tells which lines are larger" if more > 0 else None,
    )  # fmt: skip


def _stays(expectation: Expectation) -> str:
    """What of a sharded run's ledger is the same on twice the GPUs: activations, buffers, whole layers that are gathered.

    deepspeedai/DeepSpeed issue 4093: 13 GB on two GPUs and on four, where an estimate of the state alone says 0.77.
    """
    answer = expectation.answer
    question = answer.question
    if not question.plan.zero:
        return ""
    layout = replace(question.plan.layout, dp=2 * int(question.plan.layout.dp))
    cluster = question.cluster
    wider = replace(cluster, gpus=2 * cluster.gpus, gpus_per_node=max(cluster.gpus_per_node, min(8, 2 * cluster.gpus)))
    load = replace(question.workload, global_batch=2 * question.workload.global_batch)
    twice = expectation.priced(
        replace(question, cluster=wider, workload=load, plan=replace(question.plan, layout=layout))
    )
    if twice is None:
        return ""
    now, then = answer.memory.total.value, twice.memory.total.value
    stays = max(2 * then - now, 0.0)
    return (
        f"; {stays / GIB:.2f} GiB of it do not shrink with more GPUs (activations, gathered layers, buffers, context)"
    )


RULE = Rule(needs=(KIND,), judge=_judge)
