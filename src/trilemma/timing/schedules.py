"""Pipeline schedules: idle time in closed form for tables of plans, and exact timelines for one.

``p`` stages, ``m`` micro-batches, ``v`` model chunks a stage. A micro-batch takes a stage ``forward``, ``input_gradient`` and
``weight_gradient`` seconds (all its chunks together).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.plans.training import Schedule
from trilemma.quantities import Numbers

#: What a stage does at one time: forward, backward (both gradients), or one gradient alone.
Task = Literal["F", "B", "I", "W"]


def bubble_s(
    schedule: Schedule,
    *,
    pp: Numbers,
    vpp: Numbers,
    micro_batches: Numbers,
    forward_s: Numbers,
    input_gradient_s: Numbers,
    weight_gradient_s: Numbers,
    slowest_s: Numbers | None = None,
    all_stages_s: Numbers | None = None,
) -> Any:
    """Seconds that the slowest stage idles in one optimizer step, communication apart; arrays broadcast.

    Equal stages of ``t = forward + both gradients``: GPipe and 1F1B ``(p − 1)·t`` (Narayanan et al. 2019), interleaved a
    ``v``-th of it (Narayanan et al. 2021, section 2.2.2), ZB-H1 ``(p − 1)(F + I − W)``, a third at equal parts, ZB-H2 and
    ZB-V none (Qi et al. 2024, table 1: where ``F = I = W``; else what differs is left), V-Half and V-Min by Qi et al. 2024b,
    DualPipe ``(p/2 − 1)(F + B − 3W)`` with F and B overlapped, DualPipeV the same (DeepSeek-V3 report, table 1).
    One micro-batch after the other (a device map) leaves every stage idle while the others work: ``m·(p − 1)·t``.
    Never less than zero, none with one stage. With fewer micro-batches than stages zero-bubble schedules fill less: the
    part of the 1F1B bubble that they remove shrinks in proportion.

    Unequal stages: ``all_stages_s`` is the sum over stages of one micro-batch's time and ``slowest_s`` the largest; the
    step takes ``m · slowest + (all − slowest)/v``, exact for 1F1B where the slowest stage never waits once it runs.
    """
    stages = np.asarray(pp, dtype=float)
    step = forward_s + input_gradient_s + weight_gradient_s
    slowest = step if slowest_s is None else slowest_s
    around = (stages - 1) * step if all_stages_s is None else all_stages_s - slowest
    if schedule in ("gpipe", "1f1b"):
        idle: Any = around
    elif schedule == "sequential":
        idle = around * np.asarray(micro_batches)
    elif schedule == "interleaved":
        idle = around / np.asarray(vpp, dtype=float)
    else:
        share = _kept(schedule, stages, forward_s, input_gradient_s, weight_gradient_s)
        filled = np.minimum(np.asarray(micro_batches) / np.maximum(stages, 1), 1.0)
        idle = around * (1 - filled * (1 - share))
    return np.where(stages > 1, np.maximum(idle, 0.0), 0.0)


def _kept(schedule: Schedule, stages: Any, forward: Any, inputs: Any, weights: Any) -> Any:
    """The part of the 1F1B bubble that a schedule with split gradients leaves."""
    whole = np.maximum(forward + inputs + weights, 1e-30)
    uneven = (np.abs(forward - inputs) + np.abs(inputs - weights)) / 2 / whole
    match schedule:
        case "zb-h1":
            left = (forward + inputs - weights) / whole
        case "zb-h2" | "zbv":
            left = uneven
        case "v-half":
            left = 0.5 + uneven
        case "v-min":
            left = 2 / 3 + uneven
        case "dualpipe" | "dualpipev":
            left = (stages / 2 - 1) * (whole - weights * 2) / np.maximum(stages - 1, 1) / whole
        case _:
            raise InputError(f"schedule {shorten(str(schedule))!r} has no known bubble")
    return np.clip(left, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One task of one stage: ``chunk`` of ``micro_batch`` from ``start_s`` to ``end_s``."""

    stage: int
    task: Task
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


def timeline(
    schedule: Schedule,
    *,
    forward_s: Sequence[float],
    input_gradient_s: Sequence[float],
    weight_gradient_s: Sequence[float],
    micro_batches: int,
    vpp: int = 1,
    hand_over_s: float = 0.0,
) -> list[Slot]:
    """Every task of every stage with its times, by simulating the order of the schedule: exact for unequal stages too.

    Sequences hold one entry per stage, for all chunks of one micro-batch. GPipe, 1F1B, interleaved 1F1B and ZB-H1 are
    known. Raises `InputError` for others, and where interleaving does not divide.
    """
    stages = len(forward_s)
    if not stages == len(input_gradient_s) == len(weight_gradient_s):
        raise InputError("a timeline needs forward, input-gradient and weight-gradient seconds of every stage")
    if schedule == "interleaved" and micro_batches % stages:
        raise InputError(
            f"{micro_batches} micro-batches are not a multiple of the {stages} stages they interleave over"
        )
    if schedule != "interleaved" and vpp != 1:
        raise InputError(f"--vpp {vpp} needs --schedule interleaved")
    orders = [_order(schedule, stage, stages, micro_batches, vpp) for stage in range(stages)]
    seconds = {
        "F": [one / vpp for one in forward_s],
        "I": [one / vpp for one in input_gradient_s],
        "W": [one / vpp for one in weight_gradient_s],
        "B": [(one + two) / vpp for one, two in zip(input_gradient_s, weight_gradient_s, strict=True)],
    }
    return _run(orders, seconds, stages, vpp, hand_over_s)


def step_s(slots: Sequence[Slot]) -> float:
    """When the last task ends.

    Seconds, a number: by definition of a schedule, the last end.
    """
    return max(slot.end_s for slot in slots)


def _order(schedule: Schedule, stage: int, stages: int, micro_batches: int, vpp: int) -> list[tuple[Task, int, int]]:
    """(task, micro-batch, chunk) in the order in which ``stage`` takes them."""
    every = range(micro_batches)
    match schedule:
        case "gpipe":
            return [*(("F", i, 0) for i in every), *(("B", i, 0) for i in every)]
        case "1f1b":
            return _one_forward_one_backward(
                [("F", i, 0) for i in every], [("B", i, 0) for i in every], stages - stage - 1
            )
        case "interleaved":
            forwards = [("F", i, c) for i, c in _interleaved(micro_batches, stages, range(vpp))]
            backwards = [("B", i, c) for i, c in _interleaved(micro_batches, stages, range(vpp - 1, -1, -1))]
            warm_up = 2 * (stages - stage - 1) + (vpp - 1) * stages
            return _one_forward_one_backward(forwards, backwards, warm_up)  # type: ignore[arg-type]
        case "zb-h1":
            return _zero_bubble_h1(micro_batches, stages - stage - 1, stage)
        case _:
            raise InputError(
                f"no timeline of schedule {shorten(str(schedule))!r}; use gpipe, 1f1b, interleaved or zb-h1"
            )


def _one_forward_one_backward(
    forwards: list[tuple[Task, int, int]], backwards: list[tuple[Task, int, int]], warm_up: int
) -> list[tuple[Task, int, int]]:
    ahead = min(warm_up, len(forwards))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


def _interleaved(micro_batches: int, stages: int, chunks: Sequence[int]) -> list[tuple[int, int]]:
    """Groups of ``stages`` micro-batches pass through each chunk in turn (Narayanan et al. 2021, figure 4)."""
    return [
        (first + offset, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in chunks
        for offset in range(stages)
    ]


def _zero_bubble_h1(micro_batches: int, after: int, before: int) -> list[tuple[Task, int, int]]:
    """1F1B whose weight gradients wait: each stage delays as many as stages lie before it (Qi et al. 2024, figure 3)."""
    ahead = min(after, micro_batches)
    order: list[tuple[Task, int, int]] = [("F", i, 0) for i in range(ahead)]
    done = 0
    for i in range(micro_batches):
        if ahead + i < micro_batches:
            order.append(("F", ahead + i, 0))
        order.append(("I", i, 0))
        if i >= before:
            order.append(("W", done, 0))
            done += 1
    return order + [("W", i, 0) for i in range(done, micro_batches)]


def _run(
    orders: list[list[tuple[Task, int, int]]],
    seconds: dict[str, list[float]],
    stages: int,
    vpp: int,
    hand_over_s: float,
) -> list[Slot]:
    ended: dict[tuple[str, int, int, int], float] = {}
    clock = [0.0] * stages
    following = [0] * stages
    slots: list[Slot] = []
    total = sum(map(len, orders))
    while len(slots) < total:
        moved = False
        for stage in range(stages):
            while following[stage] < len(orders[stage]):
                task, i, chunk = orders[stage][following[stage]]
                ready = _ready(ended, task, i, chunk, stage, stages, vpp, hand_over_s)
                if ready is None:
                    break
                start = max(clock[stage], ready)
                end = start + seconds[task][stage]
                slots.append(Slot(stage=stage, task=task, micro_batch=i, chunk=chunk, start_s=start, end_s=end))
                ended[("I" if task == "B" else task, i, chunk, stage)] = end
                clock[stage], following[stage], moved = end, following[stage] + 1, True
        if not moved:
            raise InputError("this order of tasks never ends: a stage waits for one that waits for it")
    return slots


def _ready(
    ended: dict[tuple[str, int, int, int], float], task: Task, i: int, chunk: int, stage: int, stages: int, vpp: int,
    hand_over_s: float,
) -> float | None:  # fmt: skip
    """When what a task needs is there; None while it is not."""
    if task == "W":
        return ended.get(("I", i, chunk, stage))
    if task == "F":
        before = ("F", i, chunk, stage - 1) if stage else ("F", i, chunk - 1, stages - 1)
        first = stage == 0 and chunk == 0
    else:
        before = ("I", i, chunk, stage + 1) if stage < stages - 1 else ("I", i, chunk + 1, 0)
        first = stage == stages - 1 and chunk == vpp - 1
        if first:
            before = ("F", i, chunk, stage)
    if first and task == "F":
        return 0.0
    when = ended.get(before)
    if when is None:
        return None
    return when + (0.0 if before[3] == stage else hand_over_s)
