"""A measured step beside the predicted one, line by line; and two traces beside each other.

Kernels are grouped as the estimator's lines are: matrix products, attention, small kernels, optimizer, exposed communication, and
what the GPU waits. Steps are those that the profiler marks; in serving, calls of the attention kernel over the model's layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trilemma.diagnosis.expectation import Expectation, plain
from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.kineto import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.estimate.estimate import Estimate
from trilemma.plans import Plan

_SMALL = ("elementwise", "normalisation", "triton", "position", "reduction", "memset", "copy", "other")
#: Group → kinds of kernels, lines of a training step, lines of a token.
_GROUPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    ("matrix products", ("gemm", "moe", "convolution"), ("linear", "experts", "logits", "recompute", "newton_schulz"),
     ("dense", "experts", "lm_head", "draft")),
    ("attention", ("attention",), ("attention", "scan"), ("attention", "scan", "indexer")),
    ("small kernels", _SMALL, ("elementwise", "quantisation"), ("kernels",)),
    ("optimizer", ("multi_tensor",), ("optimizer",), ()),
)  # fmt: skip
_COMMUNICATION = (
    "tensor_parallel", "expert_exchange", "context_parallel", "pipeline_exchange", "sharded_weights", "data_parallel",
    "communication", "all_reduce", "exchange",
)  # fmt: skip
_WAITING = ("launches", "bubble", "step", "stragglers", "loading", "offload", "host_optimizer", "host")
#: A line that is longer by this share of the whole step is the cause to name.
_NOTICED = 0.05


def _judge(case: Case) -> Iterator[Finding | Missing]:
    traces = [(file, part) for file, part in case.parts(KIND) if part.facts.get("total_ms")]
    for file, part in traces:
        expectation = case.expectations.get(file)
        if expectation is not None and expectation.answer.speed is not None:
            yield from _beside(file, part, expectation)
    if len(traces) == 2 and len({part.facts.get("rank") for _, part in traces}) < 2:
        yield _difference(*traces)


def _measured(part: Part, steps: int) -> dict[str, float]:
    """Seconds of a step by group."""
    kinds: Mapping[str, tuple[float, int]] = part.whole["kinds"]
    found = {name: sum(kinds[kind][0] for kind in own if kind in kinds) for name, own, _, _ in _GROUPS}
    found["exposed communication"] = part.facts["exposed_communication_ms"]
    found["waiting"] = part.facts["gpu_idle_ms"]
    return {name: value / 1e3 / steps for name, value in found.items()}


def _predicted(answer: Estimate) -> dict[str, float]:
    assert answer.speed is not None
    serves = isinstance(answer.question.plan, Plan)
    lines = {one.name: one.seconds for one in answer.speed.operators} if serves else dict(answer.speed.lines)
    found = {
        name: sum(lines.get(line, 0.0) for line in (token if serves else step)) for name, _, step, token in _GROUPS
    }
    found["exposed communication"] = sum(value for name, value in lines.items() if name in _COMMUNICATION)
    found["waiting"] = sum(value for name, value in lines.items() if name in _WAITING)
    return found


def _steps(part: Part, answer: Estimate) -> int | None:
    if part.facts.get("steps"):
        return int(part.facts["steps"])
    if not isinstance(answer.question.plan, Plan):
        return None
    calls = part.whole["attention_calls"]
    return max(round(calls / len(answer.question.model.layers)), 1) if calls else None


def _beside(file: str, part: Part, expectation: Expectation) -> Iterator[Finding | Missing]:
    answer = expectation.answer
    steps = _steps(part, answer)
    if steps is None:
        yield Missing(what=f"the steps of {file} (profile with a schedule): its time by step beside the predicted one")
        return
    measured, predicted = _measured(part, steps), _predicted(answer)
    whole, expected = sum(measured.values()), sum(predicted.values())
    rows = [(name, measured[name], predicted[name]) for name in measured if measured[name] or predicted[name]]
    told = "; ".join(f"{name} {plain(now * 1e3)} ms ({plain(then * 1e3)})" for name, now, then in rows)
    name, now, then = max(rows, key=lambda one: one[1] - one[2])
    longer = now - then
    cause = (
        f"; the longest beyond its prediction is {name}, {longer * 1e3:+.4g} ms" if longer > _NOTICED * whole else ""
    )
    yield Finding(
        id="trace.step-beside-estimate", role="context", severity="context",
        claim=f"a step takes {plain(whole * 1e3)} ms over {steps} step{'s' if steps > 1 else ''}, {plain(expected * 1e3)} "
        "predicted "
        f"({expectation.said}); measured (predicted): {told}{cause}",
        evidence=(Evidence(file=file, value=told[:300]),), expected=f"{plain(expected * 1e3)} ms",
        observed=f"{plain(whole * 1e3)} ms", confidence="supported",
        fix=_FIXES.get(name) if cause else None,
        predicted_effect=f"at most {whole / max(whole - longer, 1e-9):.3g} times as fast" if cause else None,
    )  # fmt: skip


_FIXES = {
    "waiting": "CUDA graphs or torch.compile where the host is late; a profiler that records shapes and stacks slows the "
    "host itself",
    "exposed communication": "traces of the other ranks tell waiting from transfer; nccl-tests tell what the fabric gives",
    "matrix products": "shapes and formats of the largest kernels (top_kernels_ms); clocks under load",
    "attention": "the attention backend, and lengths longer than assumed",
    "small kernels": "fusion: torch.compile, fused norms and activations, copies that need not be",
    "optimizer": "a fused optimizer",
}


def _difference(one: tuple[str, Part], other: tuple[str, Part]) -> Finding:
    """What the second trace takes more than the first, by kind of kernel."""
    (first, before), (second, after) = one, other
    left: Mapping[str, tuple[float, int]] = before.whole["kinds"]
    right: Mapping[str, tuple[float, int]] = after.whole["kinds"]
    steps = [max(int(part.facts.get("steps", 1)), 1) for part in (before, after)]
    changes: dict[str, float] = {
        kind: right.get(kind, (0.0, 0))[0] / steps[1] - left.get(kind, (0.0, 0))[0] / steps[0]
        for kind in {**left, **right}
    }
    changes["waiting"] = after.facts["gpu_idle_ms"] / steps[1] - before.facts["gpu_idle_ms"] / steps[0]
    told = ", ".join(
        f"{kind} {value:+.4g} ms"
        for kind, value in sorted(changes.items(), key=lambda each: -abs(each[1]))[:6]
        if value
    )
    spans = [part.facts["total_ms"] / count for part, count in zip((before, after), steps, strict=True)]
    return Finding(
        id="trace.difference", role="context", severity="context",
        claim=f"{second} takes {plain(spans[1])} ms a step, {first} {plain(spans[0])}: {told or 'no kind of kernel differs'}",
        evidence=(Evidence(file=first, value=f"{plain(spans[0])} ms"), Evidence(file=second, value=f"{plain(spans[1])} ms")),
        observed=f"{spans[1] - spans[0]:+.4g} ms", confidence="established",
    )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
