"""How far a predicted speed may be off: factors that bound 90 % of measured rows, by class."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Layout
from trilemma.timing.coefficients import spec_sheet
from trilemma.timing.distance import DISTANCES, NEAR
from trilemma.timing.eras import with_age
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.serving_terms import served_as

#: What tells bounds that are of no class of distance.
OF_DATASHEETS, OF_POINTS, OF_POOLS = "datasheets alone", "measured points of this deployment", "runs of pools apart"
#: Runs of one deployment differ by so much among themselves (logarithm).
_LEAST_OWN = 0.02


def speed_spread(machine: Machine, model: Model, *, in_flight: float = 0.0) -> Mapping[str, tuple[float, float]]:
    """(low, high) factors by which measured "ttft", "tpot" and "output" differ from predicted ones in nine of ten rows.

    Classes are how far a question lies from the runs that were fitted (`trilemma.timing.distance`) and what a plan is (dense or a
    mixture), never a model, beside what sets publishers apart that were not fitted, as a user, at as many requests ``in_flight``
    (0: few). A kind of card that nobody measured has the widest bounds. The sources of the rows stand in the data files.

    Factors without a unit; numbers, since a class holds for a whole table of plans.
    """
    mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    distance = distance_of(machine, model)
    unknown = not machine.coefficients.known_card and distance not in NEAR
    row = spec_sheet()["spread"]["unmeasured" if unknown else "mixture" if mixture else "dense"]
    found = {figure: (row[figure][0], row[figure][1]) for figure in ("ttft", "tpot")}
    if distance and not unknown:
        found |= _fitted(machine, "mixture" if mixture else "dense", distance, in_flight)
    found = {name: with_age(low, high, machine.era) for name, (low, high) in found.items()}
    low, high = found["tpot"]
    return {"output": (1 / high, 1 / low)} | found


def distance_of(machine: Machine, model: Model) -> str:
    """The class of ``model`` on ``machine`` among `trilemma.timing.distance.DISTANCES`; "" where no terms were put in."""
    if machine.terms is None or not machine.engine:
        return ""
    return machine.terms.distance(machine.engine, machine.accelerator, machine.precision, model)


def ranges_in_words(machine: Machine, model: Model) -> str:
    """Of what runs the bounds of `speed_spread` are."""
    distance = distance_of(machine, model)
    if not distance or (not machine.coefficients.known_card and distance not in NEAR):
        return OF_DATASHEETS
    return DISTANCES[distance]


def profile_spread(
    spread: Mapping[str, tuple[float, float]], machine: Machine, work: ModelWork, layout: Layout, **load: float
) -> Mapping[str, tuple[float, float]]:
    """``spread``, or that of the profile in use where it was made of this deployment under loads like this one (``isl``,
    ``osl``, ``concurrency``).

    Factors without a unit, numbers. Source: the profile's own residuals (`trilemma.measured`).
    """
    terms = machine.terms
    if terms is None:
        return spread
    own, deployment = terms.own, f"{machine.engine} {machine.accelerator.id} {machine.precision}"
    if own is None or terms.profile is None or terms.profile[1] != deployment:
        return spread
    if not own.holds(served_as(work, layout), **load):
        return spread
    found = {**spread, **own.bounds}
    low, high = found["tpot"]
    return found | {"output": (1 / high, 1 / low)}


def own_spread(machine: Machine, model: Model, *, least: float) -> tuple[float, float]:
    """Factors of a time per token where runs of this very deployment were measured: what other loads of a deployment are off by
    once some were fitted, and no less than ``least``, which requests left out were off by (a share).

    Factors without a unit, numbers. Source: residuals of loads left out, by class (`trilemma.timing.distance`).
    """
    family = "mixture" if any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers) else "dense"
    spread = (
        None if machine.terms is None else machine.terms.spread("tpot", family=family, distance=next(iter(DISTANCES)))
    )
    half = max(_LEAST_OWN if spread is None else spread.half, abs(math.log1p(least)), _LEAST_OWN)
    return math.exp(-half), math.exp(half)


def pools_spread(machine: Machine, model: Model) -> Mapping[str, tuple[float, float]]:
    """`speed_spread` of prefill and decode in pools of their own: the class of such runs, whatever was fitted, and no
    narrower than interleaved serving where no kernel of this kind of card was measured.

    Factors without a unit, numbers. Source: residuals of public runs of pools apart (docs/accuracy.md).
    """
    row = spec_sheet()["spread"]["disaggregated"]
    found = {figure: (float(row[figure][0]), float(row[figure][1])) for figure in ("ttft", "tpot")}
    if not machine.coefficients.known_card:
        wider = speed_spread(machine, model)
        found = {name: (min(low, wider[name][0]), max(high, wider[name][1])) for name, (low, high) in found.items()}
    low, high = found["tpot"]
    return {"output": (1 / high, 1 / low)} | found


def _fitted(machine: Machine, family: str, distance: str, in_flight: float) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    terms = machine.terms
    assert terms is not None
    told = terms.figures.get(machine.engine, frozenset())
    for figure, of_phase in (("ttft", "prefill"), ("tpot", "decode")):
        # rates of the phases are all that runs of some engines told; bounds are symmetric, so a rate's are its time's
        name = of_phase if of_phase in told and figure not in told else figure
        half = terms.half(name, family=family, distance=distance, in_flight=in_flight)
        if half is not None:
            found[figure] = (math.exp(-half), math.exp(half))
    return found
