"""How far a predicted training step may be off: factors that bound 90 % of measured steps, by class."""

from __future__ import annotations

from trilemma.hardware.accelerator import Accelerator
from trilemma.timing.training_coefficients import Framework, coefficients, document

#: With fewer coefficients known than these three (card, framework, kind of model under it) a plan is in an unmeasured class.
_CLASSES = ("dense", "mixture")


def step_spread(framework: Framework, accelerator: Accelerator, *, mixture: bool) -> tuple[float, float]:
    """(low, high) factors by which measured steps differ from predicted ones in nine of ten runs.

    Classes: dense or mixture, each where card and framework were both fitted (residuals of runs held out one by one) or where
    one of them was not (residuals of whole frameworks held out). The rows behind them stand in the data file.
    """
    kind = _CLASSES[mixture]
    known = coefficients()
    measured = f"gpu.{accelerator.id}" in known and f"kind.{framework.name}.{kind}" in known
    row = document()["spread"][f"{kind}_{'measured' if measured else 'unmeasured'}"]
    return float(row["step"][0]), float(row["step"][1])
