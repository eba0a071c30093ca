"""The length of a training run: days, dollars and energy, checkpoints, interruptions and what they leave of the time."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.memory.training import TrainingMemory
from trilemma.plans.training import TrainingPlan
from trilemma.timing.training_run import Checkpoints, Failures, mean_time_between_s, training_run
from trilemma.timing.training_step import StepTime
from trilemma.workloads import TrainingWorkload

#: Lines of state and the stage of sharding from which on ranks hold no copies of them.
_SHARDED_FROM = {"weights": 3, "master_weights": 1, "optimizer": 1}


def _checkpoint_bytes(memory: TrainingMemory, plan: TrainingPlan, gpus: int) -> float:
    """Weights, their masters and moments of all ranks, each once: what replicas hold alike is written by one of them."""
    dp = float(np.asarray(plan.layout.dp))
    return sum(
        float(line.bytes) * gpus / (1.0 if plan.zero >= _SHARDED_FROM[line.name] else dp)
        for line in memory.ledger
        if line.name in _SHARDED_FROM
    )


def costed(run: dict[str, Any], hour: Interval | None, watts: Interval | None) -> dict[str, Any]:
    """``run`` with the dollars and the energy of its days: bounds of days, prices and watts taken together."""
    if not run:
        return run
    hours = {name: 24.0 * one for name, one in run["days"].items()}
    more: dict[str, Any] = {}
    if hour is not None:
        more["usd"] = {name: hours[name] * getattr(hour, name) for name in ("value", "low", "high")}
    if watts is not None:
        more["kwh"] = {name: hours[name] * getattr(watts, name) / 1e3 for name in ("value", "low", "high")}
    return run | more


def run_of(
    workload: TrainingWorkload, step: StepTime, low: float, high: float, cluster: Cluster, memory: TrainingMemory,
    failures: Failures | None, checkpoints: Checkpoints | None, plan: TrainingPlan,
) -> dict[str, Any]:  # fmt: skip
    """Days, steps, checkpoints and interruptions of a run whose length is stated; empty for others."""
    if workload.tokens is None:
        return {}
    value, written = float(step.step_s), checkpoints or Checkpoints()
    held = sum(float(line.bytes) for line in memory.ledger if line.name in ("weights", "master_weights", "optimizer"))
    road = cluster.accelerator.host_bytes_per_s
    copy_s = held / (road.value if road else read_data("coefficients/training_step.toml")["checkpoint"]["bytes_per_s"])
    whole = _checkpoint_bytes(memory, plan, cluster.gpus)
    write_s = written.write_s(whole)
    stall = copy_s if written.asynchronous else max(copy_s, write_s)
    run = training_run(
        tokens=workload.tokens, tokens_per_step=workload.seq * workload.global_batch,
        step=Interval(value=value, low=value * low, high=value * high), gpus=cluster.gpus, stall_s=stall, failures=failures,
        write_s=write_s,
    )  # fmt: skip
    return {
        "days": {"value": run.days.value, "low": run.days.low, "high": run.days.high},
        "steps": run.steps,
        "checkpoint_every_steps": run.checkpoint_steps,
        "checkpoint_stall_s": stall,
        "checkpoint_bytes": whole,
        **({"checkpoint_write_s": write_s} if write_s else {}),
        "lost_share": run.lost_share,
        "goodput": 1 - run.lost_share,
        "interruptions": run.interruptions,
        **(
            {"hours_between_interruptions": float(mean_time_between_s(cluster.gpus, failures)) / 3600}
            if failures
            else {}
        ),
    }
