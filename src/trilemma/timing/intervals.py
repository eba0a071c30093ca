"""How far a predicted speed may be off: factors that bound 90 % of measured rows, by class."""

from __future__ import annotations

from collections.abc import Mapping

from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Layout
from trilemma.timing.coefficients import spec_sheet
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.serving_terms import served_as


def speed_spread(machine: Machine, model: Model) -> Mapping[str, tuple[float, float]]:
    """(low, high) factors by which measured "ttft", "tpot" and "output" differ from predicted ones in nine of ten rows.

    Classes are what a plan is (dense or a mixture, engine, precision, a deployment that was fitted or not, a kind of card
    whose kernels were measured or not), never a model. A kind of card that nobody measured has the widest bounds. The
    sources of the rows stand in the data files.

    Factors without a unit; numbers, since a class holds for a whole table of plans.
    """
    mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    name = "unmeasured" if not machine.coefficients.known_card else "mixture" if mixture else "dense"
    row = spec_sheet()["spread"][name]
    found = {figure: (row[figure][0], row[figure][1]) for figure in ("ttft", "tpot")}
    if machine.engine and machine.coefficients.known_card:
        found |= _fitted(machine, "mixture" if mixture else "dense")
    found = {name: (low * machine.era.low, high * machine.era.high) for name, (low, high) in found.items()}
    low, high = found["tpot"]
    return {"output": (1 / high, 1 / low)} | found


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


def _fitted(machine: Machine, family: str) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    if machine.terms is None:
        return found
    own = {one.figure for one in machine.terms.spreads if one.engine == machine.engine}
    for figure, of_phase in (("ttft", "prefill"), ("tpot", "decode")):
        by_phase = of_phase in own and figure not in own  # rates of the phases are all that runs of this engine told
        spread = machine.terms.spread(
            of_phase if by_phase else figure, family=family, engine=machine.engine, precision=machine.precision,
            measured=machine.measured,
        )  # fmt: skip
        if spread is not None:
            found[figure] = (1 / spread.high, 1 / spread.low) if by_phase else (spread.low, spread.high)
    return found
