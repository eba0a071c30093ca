"""Alarms: which signal of which step and tensor says that a run is in trouble."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from trilemma.columns import column
from trilemma.data.digest import DATA
from trilemma.precision.lab.records import LabRun, Probe


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Figures beyond which a step raises an alarm; `shipped` reads those of the package, calibrated on the lab alone."""

    overflows_percent_above: float
    overflowing_sqnr_db_below: float
    gradient_underflows_percent_above: float
    gradient_cosine_below: float
    gradient_norm_ratio_below: float
    gradient_norm_ratio_above: float
    frozen_update_percent_above: float
    shadow_gap_above: float

    @classmethod
    def shipped(cls) -> Thresholds:
        return _shipped()


@cache
def _shipped() -> Thresholds:
    path = DATA / "precision" / "lab_alarms.toml"
    return Thresholds(**tomllib.loads(path.read_text(encoding="utf-8"))["thresholds"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """``signal`` of ``where`` stood at ``value`` in ``step``, beyond ``bound``.

    ``where`` is a layer and the role of its tensor (x activation, w weight, g output gradient), "" for the whole gradient.
    """

    step: int
    signal: str
    where: str
    value: float = field(metadata=column(finite=True))
    bound: float

    @property
    def says(self) -> str:
        """One clause for people."""
        where = f" in {self.where}" if self.where else ""
        if not math.isfinite(self.value):
            return f"{self.signal}{where}"
        return f"{self.signal} {self.value:.2g}{where}"


def alarms(probe: Probe, thresholds: Thresholds) -> list[Alarm]:
    """Alarms of one step, nearest to the cause first; none while casts are tried but not used."""
    if not probe.applied:
        return []
    return list(_raised(probe, thresholds))


def alarms_of(run: LabRun, thresholds: Thresholds) -> list[list[Alarm]]:
    """Alarms of every look of a run. Updates that are rounded stochastically are right on average, however few weights move."""
    left_out = _FROZEN if run.recipe.stochastic_storage else ""
    return [[alarm for alarm in alarms(probe, thresholds) if alarm.signal != left_out] for probe in run.probes]


def first_alarm(run: LabRun, thresholds: Thresholds) -> Alarm | None:
    """The earliest alarm that is still raised when the signals are next taken, or after which the run ended."""
    looks = alarms_of(run, thresholds)
    for at, raised in enumerate(looks):
        again = {alarm.signal for alarm in (looks[at + 1] if at + 1 < len(looks) else raised)}
        lasting = [alarm for alarm in raised if alarm.signal in again or alarm.signal == _NON_FINITE]
        if lasting:
            return lasting[0]
    return None


_FROZEN = "frozen update %"
_NON_FINITE = "NaN/Inf"


def _raised(probe: Probe, thresholds: Thresholds) -> Iterator[Alarm]:
    def alarm(signal: str, where: str, value: float, bound: float) -> Alarm:
        return Alarm(step=probe.step, signal=signal, where=where, value=value, bound=bound)

    for (layer, role), signals in probe.tensors.items():
        if signals.non_finite_percent > 0:
            yield alarm(_NON_FINITE, f"{layer}.{role}", math.nan, 0)
            break
    for (layer, role), signals in probe.tensors.items():
        # A share alone says little: a few values just beyond the range cost nothing, a few far beyond it cost the tensor.
        if (
            signals.overflows_percent > thresholds.overflows_percent_above
            and -math.inf < signals.sqnr_db < thresholds.overflowing_sqnr_db_below
        ):
            bound = thresholds.overflows_percent_above
            yield alarm("overflows%", f"{layer}.{role}", signals.overflows_percent, bound)
            break
    worst = probe.worst("g", "underflows_percent", lowest=False)
    if worst is not None and worst[0] > thresholds.gradient_underflows_percent_above:
        bound = thresholds.gradient_underflows_percent_above
        yield alarm("underflows%", f"{worst[1]}.g", worst[0], bound)
    frozen = probe.frozen_percent
    if frozen is not None and frozen > thresholds.frozen_update_percent_above:
        yield alarm(_FROZEN, "stored weights", frozen, thresholds.frozen_update_percent_above)
    gradient = probe.gradient
    if gradient.cosine < thresholds.gradient_cosine_below:
        yield alarm("gradient cosine to BF16", "", gradient.cosine, thresholds.gradient_cosine_below)
    low, high = thresholds.gradient_norm_ratio_below, thresholds.gradient_norm_ratio_above
    if not low <= gradient.norm_ratio <= high and math.isfinite(gradient.norm_ratio):
        bound = low if gradient.norm_ratio < low else high
        yield alarm("gradient norm ratio to BF16", "", gradient.norm_ratio, bound)
    gap = probe.shadow_loss - probe.loss
    if gap > thresholds.shadow_gap_above:
        yield alarm("BF16 shadow loss above the logged loss by", "", gap, thresholds.shadow_gap_above)
