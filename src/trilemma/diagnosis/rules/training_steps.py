"""What the steps of a training log say: single slow ones, waits for data, memory that climbs, losses that jump, overflows.

Thresholds: data loading above a tenth of the step (TraceML d5cec511 warns at 10 %, calls 20 % critical); a slow step takes
half again as long as the median; memory counts as climbing where it grows in nine of ten steps and by a tenth in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from trilemma.diagnosis.findings import Case, Event, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.quantities import GIB

_WAITS, _WAITS_GRAVELY = 0.1, 0.2
#: Slow steps that take less of the time than this are no fault: schedules that change shapes compile anew now and then.
_SLOW, _LOST = 1.5, 0.03
_FEWEST_STEPS = 8
_CLIMBS, _BY = 0.9, 0.1
_SPIKE = 1.5


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for file, part in case.parts(KIND):
        series: dict[str, tuple[Sequence[int], Sequence[float]]] = part.whole
        yield from _slow_steps(file, part, *series.get("step_ms", ((), ())))
        yield from _data(file, part)
        yield from _climbing(file, series)
        yield from _spikes(file, *series["loss"], series["step"][1])
        yield from _scales(file, part)
        yield from _pressure(file, part)


def _proof(file: str, part: Part, name: str) -> tuple[Evidence, ...]:
    events: list[Event] = [one for one in part.events if one.name == name]
    return tuple(Evidence(file=file, line=one.line, value=one.values["text"]) for one in events[:3])


def _slow_steps(file: str, part: Part, lines: Sequence[int], steps: Sequence[float]) -> Iterator[Finding]:
    pauses = part.facts.get("pauses", 0)
    if len(steps) < _FEWEST_STEPS and not (pauses and len(steps) > 1):
        return
    later, places = list(steps[1:]), list(lines[1:])  # the first step compiles and warms up
    usual = median(later)
    slow = [(line, value) for line, value in zip(places, later, strict=True) if value > _SLOW * usual]
    if not slow or len(slow) > len(later) / 2:
        return
    lost = sum(value - usual for _, value in slow) / sum(later)
    longest = max(value for _, value in slow)
    pause = part.facts.get("longest_pause_ms", 0.0)
    collects = pauses and pause > 0.5 * (longest - usual)
    every = len(later) / len(slow)
    yield Finding(
        id="training.pauses" if collects else "training.slow-steps",
        role="root" if collects else "symptom",
        severity="warning" if lost > _LOST or collects else "context",
        claim=f"{len(slow)} of {len(later)} steps take up to {longest:,.5g} ms, the others {usual:,.5g}"
        + (f": Python's garbage collection stops a rank for {pause:,.4g} ms and the others wait for it" if collects
           else f", one in {every:.3g}"),
        evidence=(*_proof(file, part, "pause"), *(Evidence(file=file, line=line, value=f"{value:,.5g} ms")
                                                   for line, value in slow[:3])),
        expected=f"{usual:,.5g} ms",
        observed=f"{longest:,.5g} ms",
        confidence="supported" if collects else "hypothesis",
        fix="gc.disable() or gc.freeze() after the first steps and gc.collect() on every rank at the same steps (torchtitan "
        "gc_freq, NeMo gc_every_steps)" if collects else "look at what recurs with them: garbage collection, checkpoints, "
        "evaluation, logging; a trace of one slow step tells",
        predicted_effect=f"{lost:.1%} of the time of these steps comes back",
    )  # fmt: skip


def _data(file: str, part: Part) -> Iterator[Finding]:
    wait, step = part.facts.get("median_data_s"), part.facts.get("median_step_ms")
    if not wait or not step or wait < _WAITS * step / 1e3:
        return
    share = min(wait / (step / 1e3), 1.0)
    yield Finding(
        id="training.data-bound",
        role="root",
        severity="warning",
        claim=f"the step waits {wait:.4g} s of {step / 1e3:.4g} s for data, {share:.0%}: the loader starves the GPU",
        evidence=(Evidence(file=file, line=part.events[-1].line if part.events else None, value=f"data time {wait:.4g} s"),),
        expected=f"less than {_WAITS:.0%} of the step",
        observed=f"{share:.1%}",
        confidence="established" if share > _WAITS_GRAVELY else "supported",
        fix="more loader workers with prefetching, pinned memory, decoded or tokenised data, storage nearer to the node",
        predicted_effect=f"up to {1 / max(1 - share, 0.01):.3g} times as many steps a second",
    )  # fmt: skip


def _climbing(file: str, series: dict[str, tuple[Sequence[int], Sequence[float]]]) -> Iterator[Finding]:
    lines, sizes = series.get("allocated_bytes") or series.get("memory_bytes") or ((), ())
    if len(sizes) < _FEWEST_STEPS:
        return
    grows = sum(after > before for before, after in pairwise(sizes)) / (len(sizes) - 1)
    more = sizes[-1] - sizes[0]
    if grows < _CLIMBS or more < _BY * sizes[0]:
        return
    each = more / (len(sizes) - 1)
    yield Finding(
        id="memory.leak",
        role="root",
        severity="warning",
        claim=f"memory climbs in {grows:.0%} of the steps, from {sizes[0] / GIB:.2f} to {sizes[-1] / GIB:.2f} GiB: something "
        "holds on to every step",
        evidence=(Evidence(file=file, line=int(lines[0]), value=f"{sizes[0] / GIB:.2f} GiB"),
                  Evidence(file=file, line=int(lines[-1]), value=f"{sizes[-1] / GIB:.2f} GiB")),
        expected="the same peak in every step",
        observed=f"{each / GIB:+.4f} GiB a step logged",
        confidence="supported",
        fix="sum losses and metrics as numbers (loss.item(), detach()), empty lists of outputs; a memory snapshot names the "
        "lines that allocate what stays",
    )  # fmt: skip


def _spikes(file: str, lines: Sequence[int], losses: Sequence[float], steps: Sequence[float]) -> Iterator[Finding]:
    """A loss far above the median of the steps before it, in a run that had settled."""
    window = 32
    if len(losses) < window + 2:
        return
    found: list[tuple[int, float, float]] = []
    at = window
    while at < len(losses):
        before = median(losses[at - window : at])
        if losses[at] > _SPIKE * before and losses[at] - before > 0.5:
            found.append((at, losses[at], before))
            at += window
        else:
            at += 1
    if not found:
        return
    first, value, before = found[0]
    comes_back = min(losses[first:]) < 1.1 * before
    yield Finding(
        id="numerics.loss-spike",
        role="symptom",
        severity="warning" if not comes_back or len(found) > 1 else "context",
        claim=f"the loss jumps from {before:.4g} to {value:.4g} at step {steps[first]:.0f}"
        + (f", {len(found)} times in this log" if len(found) > 1 else "")
        + (" and comes back" if comes_back else " and does not come back"),
        evidence=tuple(Evidence(file=file, line=int(lines[at]), value=f"loss {loss:.4g}") for at, loss, _ in found[:5]),
        expected=f"about {before:.4g}",
        observed=f"{value:.4g}",
        confidence="established",
        fix="go back to the checkpoint before it and skip these batches; look at the gradient norm before it, a lower rate or "
        "clipping, and at Xid or ECC errors at that time",
    )


def _scales(file: str, part: Part) -> Iterator[Finding]:
    overflows = part.facts.get("overflows", 0)
    scale = part.facts.get("median_loss_scale", 0.0)
    if overflows < 3 or overflows < 0.05 * max(part.facts["steps_logged"], 1):
        return
    yield Finding(
        id="numerics.overflow",
        role="symptom",
        severity="warning",
        claim=f"{overflows} steps were skipped because FP16 gradients overflowed, of {part.facts['steps_logged']} logged",
        evidence=_proof(file, part, "overflow"),
        expected="one now and then, and at the start until the loss scale has settled",
        observed=f"{overflows}" + (f", loss scale {scale:,.0f}" if scale else ""),
        confidence="established",
        fix="train in BF16, whose range needs no loss scale; else look for the layer whose activations grow",
    )


def _pressure(file: str, part: Part) -> Iterator[Finding]:
    flushes = part.facts.get("allocator_flushes", 0)
    if not flushes:
        return
    yield Finding(
        id="memory.allocator-pressure",
        role="root",
        severity="warning",
        claim=f"the allocator emptied its cache {flushes} times because memory ran short, and each time the GPU waited",
        evidence=_proof(file, part, "pressure"),
        expected="0 retries",
        observed=f"{flushes}",
        confidence="established",
        fix="expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF, then a smaller micro-batch or recomputation",
    )


RULE = Rule(needs=(KIND,), judge=_judge)
