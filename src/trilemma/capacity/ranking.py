"""Cards in the order in which they could win at best, laid out until none of those left can."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trilemma.capacity.choice import CardChoice, SparedFirst
from trilemma.capacity.offers import Limits, Offers
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import counted

#: Card → the best choice on it, or why there is none.
Laid = Callable[[Accelerator], CardChoice | str]
#: Is told how many cards of how many were laid out, and the next.
Progress = Callable[[int, int, str], None]
#: What is spared, in words for its unit.
_UNITS: dict[SparedFirst, str] = {"price": "dollars an hour", "gpus": "GPUs", "power": "watts"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """The best ``choices``, how many cards were laid out, and why the others are not among them."""

    choices: tuple[CardChoice, ...]
    searched: int
    left_out: Counter[str] = field(default_factory=Counter)


def ranked(
    offers: Offers,
    least: Callable[[Accelerator], int],
    laid: Laid,
    *,
    top: int,
    limits: Limits,
    progress: Progress | None = None,
) -> Ranked:
    """The ``top`` choices of least cost, exactly: cards are laid out by the cost of the ``least`` GPUs that could do, until that
    of the next is no less than the cost of the last choice (branch and bound)."""
    left_out = Counter(offers.left_out)
    waiting: list[tuple[float, str, Accelerator]] = []
    for card in offers.cards:
        gpus = least(card)
        if gpus > limits.gpus:
            left_out[f"more than {counted(limits.gpus, 'GPU')}"] += 1
            continue
        heapq.heappush(waiting, (offers.least_cost(card, gpus), card.id, card))
    found: list[CardChoice] = []
    searched = 0
    while waiting:
        bound, _, card = heapq.heappop(waiting)
        if len(found) == top and bound >= found[-1].cost:
            left_out[f"more {_UNITS[offers.spared]} than the last, even at the datasheet's roofs"] += 1 + len(waiting)
            break
        if progress is not None:
            progress(searched, searched + 1 + len(waiting), card.name)
        searched += 1
        try:
            choice = laid(card)
        except InputError as error:
            choice = error.flags
        if not isinstance(choice, str):
            choice = _beyond(choice, limits) or choice
        if isinstance(choice, str):
            left_out[choice] += 1
            continue
        found = sorted([*found, choice], key=lambda one: (one.cost, one.card.id))
        if len(found) > top:
            left_out[f"more {_UNITS[offers.spared]} than the last"] += len(found) - top
            found = found[:top]
    if progress is not None:
        progress(searched, searched, "")
    return Ranked(choices=_told(found, offers.spared), searched=searched, left_out=left_out)


def _beyond(choice: CardChoice, limits: Limits) -> str | None:
    """Which limit the choice passes, in words."""
    if choice.gpus > limits.gpus:
        return f"more than {counted(limits.gpus, 'GPU')}"
    hour = choice.usd_per_hour
    if limits.usd_per_hour is not None and (hour is None or hour.value > limits.usd_per_hour):
        return f"dearer than ${limits.usd_per_hour:,.2f} an hour"
    if limits.usd is not None and (choice.run_usd is None or choice.run_usd.value > limits.usd):
        return f"a run dearer than ${limits.usd:,.0f}"
    if limits.watts is not None and (choice.watts is None or choice.watts.high > limits.watts):
        return f"may draw more than {limits.watts / 1e3:,.1f} kW"
    return None


def _told(found: list[CardChoice], spared: SparedFirst) -> tuple[CardChoice, ...]:
    """The choices with why each stands where it does."""
    return tuple(replace(one, why=_why(one, found[0], spared)) for one in found)


def _why(choice: CardChoice, first: CardChoice, spared: SparedFirst) -> str:
    bottleneck = choice.estimate.bottleneck
    bound = f"bound by {bottleneck.resource.replace('_', ' ')}" if bottleneck is not None else ""
    if choice is first:
        least = {"price": "the cheapest", "gpus": "the fewest GPUs", "power": "the least power"}[spared]
        return ", ".join(one for one in (least, bound) if one)
    more = choice.cost / first.cost
    unit = {"price": "the price", "gpus": "the GPUs", "power": "the power"}[spared]
    told = f"the same {unit.partition(' ')[2]} as the first" if more < 1.005 else f"{more:.2f} x {unit} of the first"
    return ", ".join(one for one in (told, bound) if one)
