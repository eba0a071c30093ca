"""What lies outside the cards, in an estimate of speed: how wide it makes the answer, and what was assumed of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trilemma.engines.base import StartUp
from trilemma.errors import PlanWarning
from trilemma.hardware.cluster import Cluster
from trilemma.timing import PassTime, ServingSpeed
from trilemma.timing.host_weights import HOST_LINES, HostPart, host_spread

SpreadFactors = Mapping[str, tuple[float, float]]


def with_host(spread: SpreadFactors, speed: ServingSpeed, *, start: StartUp, cluster: Cluster) -> SpreadFactors:
    """``spread`` with the part of each figure that the host takes as uncertain as the host is.

    Bounds add: the cards' error and the host's are taken to go the same way, which is the wider case.
    """
    part = start.on_host
    if part is None:
        return spread
    step, prompt = _share(speed.step), _share(speed.prefill)
    tpot_s = float(np.asarray(speed.tpot_s))
    of_prompts = float(np.asarray(speed.lines.get("prefill", 0.0))) / tpot_s
    host_of_token = step * (1 - of_prompts) + prompt * of_prompts
    host_of_first = prompt * _prefill_of_first(speed)
    tpot = _mixed(spread["tpot"], _host(part, cluster, prompt=False), host_of_token)
    ttft = _mixed(spread["ttft"], _host(part, cluster, prompt=True), host_of_first)
    return {**spread, "tpot": tpot, "ttft": ttft, "output": (1 / tpot[1], 1 / tpot[0])}


def host_warnings(start: StartUp, cluster: Cluster) -> tuple[PlanWarning, ...]:
    """What is said of the host of a plan whose processor reads weights there."""
    host = cluster.around
    if start.on_host is None or start.on_host.read_by_card or not host.assumed:
        return ()
    low, high = (f"{bound / 1e9:,.0f}" for bound in (host.interval.low, host.interval.high))
    message = (
        f"the host's memory is assumed to be {host.name}, {host.bytes_per_s.value / 1e9:,.1f} GB/s ({low} to {high});"
        " state it with --host, such as DDR5-6000x2"
    )
    return (PlanWarning(code="assumed-host", message=message),)


def _host(part: HostPart, cluster: Cluster, *, prompt: bool) -> tuple[float, float]:
    return host_spread(cluster.around, part, prompt=prompt)


def _share(of: PassTime) -> float:
    """The part of a pass that the host's lines take."""
    total = _float(of.total_s)
    return sum(_float(seconds) for name, seconds in of.lines.items() if name in HOST_LINES) / total if total else 0.0


def _prefill_of_first(speed: ServingSpeed) -> float:
    first = _float(speed.ttft_s)
    return min(_float(speed.prefill_s) / first, 1.0) if first else 0.0


def _mixed(cards: tuple[float, float], host: tuple[float, float], share: float) -> tuple[float, float]:
    return (
        cards[0] * (1 - share) + host[0] * share,
        cards[1] * (1 - share) + host[1] * share,
    )


def _float(number: Any) -> float:
    return float(np.asarray(number))
