"""Optimizers whose moments the driver moves to the host where a card has no room for them (bitsandbytes' paged ones)."""

from __future__ import annotations

from dataclasses import replace

from trilemma.errors import PlanWarning
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import TrainingMemory, training_memory
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.quantities import show_gib
from trilemma.workloads import TrainingWorkload

#: Part of the card that the driver fills before it moves pages.
_FILLED = 0.98


def paged_out(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, memory: TrainingMemory
) -> tuple[TrainingMemory, tuple[PlanWarning, ...]]:
    """``memory`` with as many paged moments on the host as the card has no room for, and what is to be known of that; unchanged
    where all fits or nothing pages.

    Source: bitsandbytes/functional.py, get_paged: moments in managed memory (cudaMallocManaged), prefetched before an update.
    """
    line = memory.ledger.get("optimizer")
    over = float(memory.device_bytes) - _FILLED * cluster.accelerator.runtime_total().value
    if not plan.optimizer.paged or line is None or over <= 0:
        return memory, ()
    share = min(over / float(line.bytes), 1.0)
    moved = replace(plan, offload=replace(plan.offload, moments=share))
    text = f"{show_gib(share * float(line.bytes))} GiB of moments are paged to the host; the step waits for them"
    return training_memory(model, cluster, moved, workload), (PlanWarning(code="paged-moments", message=text),)
