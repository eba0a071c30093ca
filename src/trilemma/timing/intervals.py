"""How far a spec-sheet speed may be off: factors that bound 90 % of measured rows, by class."""

from __future__ import annotations

from collections.abc import Mapping

from trilemma.models.architecture import ExpertFfn, Model
from trilemma.timing.coefficients import spec_sheet
from trilemma.timing.forward_pass import Machine


def speed_spread(machine: Machine, model: Model) -> Mapping[str, tuple[float, float]]:
    """(low, high) factors by which measured "ttft" and "tpot" differ from predicted ones in nine of ten rows.

    Classes are what a plan is (dense or a mixture, a kind of card whose kernels were measured or not), never a model. The
    source of the rows stands in the data file.
    """
    mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    name = "unmeasured" if not machine.coefficients.known_card else "mixture" if mixture else "dense"
    row = spec_sheet()["spread"][name]
    return {figure: (row[figure][0], row[figure][1]) for figure in ("ttft", "tpot")}
