"""What sets publishers apart whose runs were not fitted: how much farther off their figures lie than their classes say.

The second of two levels: the first are classes by distance (`spread`), made of runs of the publishers that were fitted. Others
are few and each is off in its own way (default flags, other releases, what their rows leave unsaid), so widths are those of a
Student's law, and what they are worth shows where they are made of the others alone (`held`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trilemma.intervals import NINETY, student_t_95
from trilemma.measured.serving.speed.figures import TIMES, SpeedFigures, phase_pass
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.tables import Row
from trilemma.models.architecture import ExpertFfn
from trilemma.quantities import Array
from trilemma.timing.serving_terms import ServingTerms, loaded_as

#: Share of the figures of other publishers that bounds are to hold.
INSIDE = 0.9
#: A publisher of fewer figures than this weighs the less, and one of fewer than the least nothing.
_TELLING, _LEAST = 20, 5
#: Publishers that are taken to have told the same beside those known, since each has several models and cards.
_LENT = 1
_OF_DEVIATION = 0.5
#: Half-width (logarithm) below which no publisher is taken to be: those whose classes explain all ran one kind of card, and
#: reports of one reader each on other cards lie 15 to 20 % off (llama.cpp on RTX PRO 6000).
_NEVER_CLOSER = 0.2
#: Figures of the same steps: what sets a publisher apart in one of them does so in the others.
_OF_STEPS = ("tpot", "output")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One figure of a publisher whose runs were not fitted: measured over predicted, and the half-width (logarithm) of its class
    of distance and of its age; ``name`` is the figure and its kind of load."""

    name: str
    origin: str
    ratio: float
    own: float

    @property
    def off(self) -> float:
        """By how much (logarithm) it lies off."""
        return abs(math.log(self.ratio))


def published(
    rows: Sequence[Row],
    questions: Sequence[SpeedQuestion | str],
    benches: Sequence[SpeedFigures],
    predicted: Array,
    far: Sequence[str],
    terms: ServingTerms,
) -> list[Published]:
    """Figures of origins that ``terms`` were not fitted to, without rows of tier C, those at a rate, of which it is not known
    what was in flight, and those that no such card can have made (`_beyond`)."""
    found = []
    for bench in benches:
        figures = zip(bench.at.tolist(), bench.quantity, bench.measured, _beyond(bench).tolist(), strict=True)
        for at, figure, measured, beyond in figures:
            row, question = rows[at], questions[at]
            assert isinstance(question, SpeedQuestion)
            known = np.isfinite(predicted[at]) and question.rate is None and row.text("tier").upper() != "C"
            if known and not beyond and row.text("origin") not in terms.origins:
                mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in question.model.layers)
                name, family = terms.told_as(bench.engine, str(figure)), "mixture" if mixture else "dense"
                spread = terms.spread(name, family=family, distance=far[at], in_flight=question.concurrency)
                ratio = float(measured / predicted[at])
                later = (ratio > 1) == (str(figure) in TIMES)
                aged = abs(math.log(question.age.high if later else question.age.low))
                found.append(
                    Published(
                        name=loaded_as(name, question.concurrency),
                        origin=row.text("origin"),
                        ratio=ratio,
                        own=math.hypot(spread.half if spread is not None else 0.0, aged),
                    )
                )
    return found


def _beyond(bench: SpeedFigures) -> Array:
    """Which figures are times of a token in which not even one request alone could read the weights: the run did something that
    its row does not say, such as drafts."""
    alone = replace(bench, concurrency=np.ones_like(bench.concurrency))
    least_s = phase_pass(alone, bench.machine.at_datasheet(), "decode").total_s
    return np.asarray((bench.quantity == "tpot") & (bench.measured < least_s))


def widths_of(found: Iterable[Published]) -> dict[str, float]:
    """By figure and kind of load: the half-width (logarithm) that, beside that of their classes, holds nine of ten figures of a
    publisher that is not among these. One that tells nothing of many in flight stands there with what it tells of few."""
    rows: dict[tuple[str, str], list[Published]] = {}
    for one in found:
        rows.setdefault((one.name, one.origin), []).append(one)
    apart = {key: (_apart(own), min(len(own), _TELLING)) for key, own in rows.items() if len(own) >= _LEAST}
    result: dict[str, float] = {}
    for name in sorted({name for name, _ in apart}):
        figure, _, load = name.partition(" ")
        known: dict[str, tuple[float, float]] = {}
        for of_load in dict.fromkeys((load, "")):
            alike = [f"{one} {of_load}".strip() for one in (_OF_STEPS if figure in _OF_STEPS else (figure,))]
            told: dict[str, tuple[float, float]] = {}
            for (other, origin), (width, weight) in apart.items():
                if other in alike:
                    told[origin] = max(told.get(origin, (0.0, 0.0)), (width, float(weight)))
            known = told | known
        # names of few come before those of many: who is sure of a burst's first tokens is no surer of how a load begins
        result[name] = max(_of_a_stranger(list(known.values())), result.get(figure, 0.0), _NEVER_CLOSER)
    return result


def _apart(rows: Sequence[Published]) -> float:
    """What holds nine of ten of ``rows`` in squares beside their own half-widths."""
    return float(np.quantile([math.sqrt(max(one.off**2 - one.own**2, 0.0)) for one in rows], INSIDE))


def _of_a_stranger(known: Sequence[tuple[float, float]]) -> float:
    """The half-width of one more of those ``known`` (half-width, weight): their root mean square, by Student's law for so few,
    and half of what they deviate among themselves, since a publisher that is left out tends to be one that is farther off."""
    widths, weights = (np.array(column) for column in zip(*known, strict=True))
    mean = math.sqrt(float(np.sum(weights * widths**2) / np.sum(weights)))
    telling = float(np.sum(weights) ** 2 / np.sum(weights**2))
    apart = math.sqrt(float(np.sum(weights * (widths - np.average(widths, weights=weights)) ** 2) / np.sum(weights)))
    return mean * student_t_95(telling + _LENT) / NINETY + _OF_DEVIATION * apart


def held(found: Sequence[Published]) -> dict[tuple[str, str], tuple[int, float, float]]:
    """Of each figure and publisher: rows, the share inside bounds made of the other publishers alone, and their half-width (the
    median of rows, with their classes')."""
    result = {}
    for name, origin in sorted({(one.name, one.origin) for one in found}):
        others = widths_of(one for one in found if one.origin != origin)
        apart = others.get(name, others.get(name.split(" ")[0], 0.0))
        mine = [one for one in found if (one.name, one.origin) == (name, origin)]
        halves = [math.hypot(one.own, apart) for one in mine]
        inside = [one.off <= half for one, half in zip(mine, halves, strict=True)]
        result[name, origin] = len(mine), float(np.mean(inside)), float(np.median(halves))
    return result
