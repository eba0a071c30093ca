"""Checkpoints of a training run: what its command and its owner say of them, and what they cost beside the best interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trilemma.data.files import read_data
from trilemma.estimate.estimate import Estimate
from trilemma.timing.training_run import (
    Failures,
    checkpoint_interval_s,
    checkpoint_stall_s,
    lost_share,
    mean_time_between_s,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """What is stated: seconds between checkpoints, or steps; whether writing is asynchronous; the storage's part of a GPU."""

    interval_s: float | None = None
    interval_steps: int | None = None
    asynchronous: bool | None = None
    storage_bytes_per_s: float | None = None


def saving_of(words: Sequence[str]) -> Saving:
    """What the flags of a training command say of its checkpoints."""
    table = read_data("audit.toml")
    steps: int | None = None
    waits: bool | None = None
    pairs = [word.partition("=") for word in words]
    for at, (flag, sign, value) in enumerate(pairs):
        following = value if sign else words[at + 1] if at + 1 < len(words) else ""
        if flag in table["interval_flags"] and following.isdecimal() and len(following) < 10:
            steps = int(following)
            waits = False if waits is None else waits
        elif flag in table["async_flags"]:
            waits = True
        elif flag in table["async_values"]:
            waits = following in table["async_values"][flag]
    return Saving(interval_steps=steps, asynchronous=waits)


def saving_verdict(
    answer: Estimate | None, saving: Saving
) -> tuple[Literal["pass", "fail", "unknown"], str, str | None]:
    """(state, evidence, remedy) of how a run saves."""
    interval = _interval_s(answer, saving)
    if answer is None or interval is None or saving.asynchronous is None:
        lacking = [
            *(["the plan"] if answer is None else []),
            *(["--checkpoint-minutes"] if interval is None else []),
            *(["--checkpoint-async or --no-checkpoint-async"] if saving.asynchronous is None else []),
        ]
        return "unknown", f"{', '.join(lacking)} would tell", None
    question: Any = answer.question
    storage = saving.storage_bytes_per_s or float(read_data("audit.toml")["storage_bytes_per_s_per_gpu"])
    held = sum(
        float(line.bytes) for line in answer.memory.ledger if line.name in ("weights", "master_weights", "optimizer")
    )
    road = question.cluster.accelerator.host_bytes_per_s
    host = road.value if road else float(read_data("coefficients/training_step.toml")["checkpoint"]["bytes_per_s"])
    failures = Failures()
    between = float(mean_time_between_s(question.cluster.gpus, failures))

    def cost(asynchronous: bool, every_s: float | None) -> tuple[float, float]:
        stall = float(
            checkpoint_stall_s(
                held, host_bytes_per_s=host, storage_bytes_per_s_per_gpu=storage, asynchronous=asynchronous
            )
        )
        best = float(checkpoint_interval_s(max(stall, 1e-3), between))
        return best, float(lost_share(stall, every_s or best, between, 0.0))

    best, lost = cost(saving.asynchronous, interval)
    way = "asynchronous" if saving.asynchronous else "synchronous"
    told = f"{way}, every {interval / 60:,.3g} min: {lost:.2%} of time lost; least at {best / 60:,.3g} min"
    if lost <= float(read_data("audit.toml")["checkpoint_lost_most"]):
        if saving.asynchronous:
            return "pass", told, None
        ahead, least = cost(True, None)
        return "fail", told, f"write asynchronously: {least:.2%} at every {ahead / 60:,.3g} min"
    ahead, least = cost(True, None)
    return "fail", told, f"asynchronously every {ahead / 60:,.3g} min: {least:.2%} lost"


def _interval_s(answer: Estimate | None, saving: Saving) -> float | None:
    if saving.interval_s is not None:
        return saving.interval_s
    speed = None if answer is None else answer.speed
    if saving.interval_steps is None or speed is None or speed.step_s is None:
        return None
    return float(saving.interval_steps * speed.step_s.interval.value)
