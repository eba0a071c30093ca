"""How likely a plan is to hold its targets, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trilemma.estimate.estimate import Estimate
from trilemma.search.targets import EVEN_ODDS

if TYPE_CHECKING:
    from trilemma.search.result import SearchResult


def chance_words(estimate: Estimate, name: str) -> str:
    """The probability that a target holds."""
    told = (one.probability for one in estimate.targets if one.name == name)
    return f"{percent(next(told, 0.0)):>5}"


def joint_chance(estimate: Estimate) -> float | None:
    """The chance that every target holds; None without targets.

    The least of their chances: both latencies come from the same passes, so what errs in one errs in the other, and a
    product would count the same error twice.
    """
    return min((one.probability for one in estimate.targets), default=None)


def percent(share: float) -> str:
    """A chance in whole percent; what is not certain is never said to be."""
    return ">99 %" if share >= 0.995 else f"{share:.0%}".replace("%", " %")


def joint_words(result: SearchResult) -> Iterator[str]:
    """How sure the best plan is to hold what was asked for."""
    chance = joint_chance(result.plans[0].estimate)
    if chance is None:
        return
    both = len(result.plans[0].estimate.targets) > 1
    why = " (the least of the chances: errors of TTFT and TPOT go together)" if both else ""
    ask = (
        "; --confidence 0.8 asks for plans that are surer"
        if result.confidence in (None, EVEN_ODDS) and chance < 0.8
        else ""
    )
    yield f"#1 holds {'both targets' if both else 'the target'} with a chance of {percent(chance)}{why}{ask}"
