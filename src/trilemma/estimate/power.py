"""Watts of all cards of a plan and joules a token, from what the cards do at the plan's speed, each with its range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.timing.clocks import clock_law, voltage
from trilemma.timing.power import Activity, drawn_share, power_terms

#: A card that does nothing between requests.
IDLE = Activity(compute=0.0, memory=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Doing:
    """What so many cards do, at ``clock`` of their highest."""

    gpus: int
    activity: Activity
    clock: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Watts of all cards, and joules a token of what they make."""

    watts: Interval
    joules_per_token: Interval | None


def at_most(cluster: Cluster) -> Interval | None:
    """Watts of cards of which it is not known what they do: between idle and their limit."""
    limit = cluster.watts
    if limit is None:
        return None
    idle = min(power_terms(card).shares["idle"] for card in cluster.every[:1] + cluster.cards)
    return Interval(value=limit, low=limit * idle, high=limit)


def drawn(cluster: Cluster, doing: Sequence[Doing], tokens_per_s: Interval | None) -> Drawn | None:
    """Watts and joules of cards that are ``doing`` so much at ``tokens_per_s``; None where the limit of a card is not known.

    A load that runs slower than told draws less, in the part that its work draws, and more a token: the ends of the rate tell
    both, joined with what watts are off by at a rate that is known, as if the two were independent.
    """
    limits = [card.tdp_w for card in cluster.every]
    if any(limit is None for limit in limits):
        return None
    total = cluster.watts or 0.0
    if tokens_per_s is None or tokens_per_s.value <= 0:
        slow = fast = 1.0
    else:
        slow, fast = tokens_per_s.low / tokens_per_s.value, tokens_per_s.high / tokens_per_s.value
    half = max(power_terms(card).half for card in cluster.every[:1] + cluster.cards)
    value, low, high = (_watts(cluster, doing, share) for share in (1.0, slow, fast))
    down, up = (float(np.hypot(half, np.log(one / value))) for one in (low, high))
    watts = Interval(value=value, low=value * np.exp(-down), high=max(min(value * float(np.exp(up)), total), value))
    if tokens_per_s is None or tokens_per_s.value <= 0:
        return Drawn(watts=watts, joules_per_token=None)
    joules = value / tokens_per_s.value
    dear = float(np.log(low / tokens_per_s.low / joules)) if tokens_per_s.low > 0 else np.inf
    cheap = float(np.log(joules / (high / tokens_per_s.high)))
    # no rate makes a token dearer than the limit of all boards at the lowest rate
    most = total / tokens_per_s.low if tokens_per_s.low > 0 else np.inf
    return Drawn(
        watts=watts,
        joules_per_token=Interval(
            value=joules,
            low=joules * float(np.exp(-np.hypot(half, max(cheap, 0.0)))),
            high=max(min(joules * float(np.exp(np.hypot(half, max(dear, 0.0)))), most), joules),
        ),
    )


#: The part of a training step in which memory moves at its peak beside the products: norms, casts, optimizer, recomputed layers.
_TRAINING_MEMORY = 0.3


def training_activity(computing: float) -> Activity:
    """What cards do in a step of training whose products take the part ``computing`` of the time at their peak."""
    return Activity(compute=computing, memory=_TRAINING_MEMORY)


def training_power(
    cluster: Cluster, computing: float, tokens_per_s_per_gpu: Interval | None, *, clock: float = 1.0
) -> Drawn | None:
    """Watts and joules of training whose products take the part ``computing`` of the time at their peak, at ``clock`` of the
    highest.

    No run of training with watts was fitted: the terms are those of serving, the range reaches down to boards whose memory is
    still and up to their limit.
    """
    limit = cluster.watts
    if limit is None or tokens_per_s_per_gpu is None:
        return None
    terms = power_terms(cluster.accelerator)
    value, still = (
        min(_watts(cluster, (Doing(gpus=cluster.gpus, activity=one, clock=clock),), 1.0), limit)
        for one in (training_activity(computing), Activity(compute=computing, memory=0.0))
    )
    watts = Interval(value=value, low=min(still, value) * float(np.exp(-terms.half)), high=limit)
    rate = tokens_per_s_per_gpu.scaled(cluster.gpus)
    joules = Interval(value=value / rate.value, low=watts.low / rate.high, high=limit / rate.low)
    return Drawn(watts=watts, joules_per_token=joules)


def _watts(cluster: Cluster, doing: Sequence[Doing], share: float) -> float:
    """Watts of all cards at ``share`` of their rate; those that none of ``doing`` are idle."""
    cards = cluster.every
    found, at = 0.0, 0
    for one in (*doing, Doing(gpus=cluster.gpus - sum(one.gpus for one in doing), activity=IDLE)):
        for card in cards[at : at + one.gpus] if cluster.cards else cards[: min(one.gpus, 1)]:
            times = 1 if cluster.cards else one.gpus
            assert card.tdp_w is not None
            cap = 1.0 if cluster.power_cap_w is None else cluster.power_cap_w / card.tdp_w.value
            found += times * card.tdp_w.value * min(_share(one, card, share), cap)
        at += one.gpus
    return found


def _share(doing: Doing, card: Accelerator, rate: float) -> float:
    """Of the card's limit, at ``rate`` times as much work; its voltage is that of its clock."""
    terms, law = power_terms(card), clock_law(card)
    squared = float(voltage(doing.clock, law)) ** 2
    idle = terms.shares["idle"]
    work = float(np.asarray(drawn_share(doing.activity.at_rate(rate), terms))) - idle
    still = 1.0 - law.idle_clocked + law.idle_clocked * doing.clock * squared
    return min(idle * still + work * squared, 1.0)
