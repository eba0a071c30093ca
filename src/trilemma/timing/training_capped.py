"""A step of training under a power cap: at the clock at which its products and its traffic draw no more."""

from __future__ import annotations

from trilemma.hardware.cluster import Cluster
from trilemma.quantities import Numbers
from trilemma.timing.clocks import clock_law, clock_under_cap, clocked_share
from trilemma.timing.power import Activity, power_terms
from trilemma.timing.training_step import StepTime


def step_under_cap(step: StepTime, cluster: Cluster, doing: Activity) -> tuple[StepTime, float]:
    """A step of training of cards that are ``doing`` so much in it, at the clock at which they draw no more than their cap; and
    that clock. The same without a cap.

    Seconds and shares, numbers of one plan. Source: `trilemma.timing.clocks`; its shares were fitted to serving.
    """
    card = cluster.accelerator
    if cluster.power_cap_w is None or card.tdp_w is None:
        return step, 1.0
    law, total_s = clock_law(card), float(step.step_s)
    parts: dict[str, Numbers] = {
        "launches": float(step.lines["launches"]) / total_s,
        "memory": float(step.resources["memory_bandwidth"]) / total_s,
        "compute": float(step.resources["compute"]) / total_s,
    }
    cap = cluster.power_cap_w / card.tdp_w.value
    clock = float(clock_under_cap(cap, doing, power_terms(card), law, clocked_share(parts, law)))
    slower = {name: 1.0 - part + part / clock for name, part in
              (("launches", law.launches), ("memory_bandwidth", law.memory), ("compute", law.compute))}  # fmt: skip
    return step.slowed(slower), clock
