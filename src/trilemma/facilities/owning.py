"""Owning against renting: annuities, upkeep and electricity against a price of the hour."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trilemma.errors import InputError
from trilemma.facilities.answer import RentOrBuy

HOURS_A_YEAR = 8760.0
_MONTHS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """Dollars of one GPU with its part of node and network; years of use; interest, upkeep and staff a year, and what is left at
    the end, as parts of the price."""

    usd_per_gpu: float
    years: float
    interest: float
    upkeep: float
    resale: float

    def __post_init__(self) -> None:
        ranges = {"usd_per_gpu": (0, 1e7), "years": (0.1, 30), "interest": (0, 1), "upkeep": (0, 1), "resale": (0, 1)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise InputError(
                    f"`{name}` {getattr(self, name):g} is out of range; give a number from {low:g} to {high:g}"
                )

    @property
    def usd_per_year(self) -> float:
        """Annuity of the price, what is left at the end taken off at its present value.

        ``(P − R/(1+i)^n) · i / (1 − (1+i)^−n)``, and ``(P − R)/n`` without interest.
        """
        left = self.usd_per_gpu * self.resale
        lost = -math.expm1(-self.years * math.log1p(self.interest))
        if lost == 0:
            return (self.usd_per_gpu - left) / self.years
        return (self.usd_per_gpu - left * (1 - lost)) * self.interest / lost


def rent_or_buy(
    purchase: Purchase, *, gpus: int, rent_usd_per_hour: float, electricity_usd_per_year: float, utilisation: float
) -> RentOrBuy:
    """``gpus`` bought, against the hours that are used rented at ``rent_usd_per_hour`` a GPU.

    Bought ones cost whether they run or not, rented ones while they run: ``utilisation`` is the part of the hours in which
    there is work. ``electricity_usd_per_year`` is of all, at that utilisation.
    """
    if not 0 < rent_usd_per_hour < 1e5:
        raise InputError(f"`rent` {rent_usd_per_hour:g} is out of range; give dollars of a GPU and hour, above 0")
    hours = HOURS_A_YEAR * utilisation * gpus
    parts = {
        "cards": purchase.usd_per_year * gpus,
        "upkeep": purchase.usd_per_gpu * purchase.upkeep * gpus,
        "electricity": electricity_usd_per_year,
    }
    own = sum(parts.values())
    rented = rent_usd_per_hour * hours
    months = _break_even_months(purchase, gpus, rented, parts["upkeep"] + electricity_usd_per_year)
    needed = own / (rent_usd_per_hour * HOURS_A_YEAR * gpus)
    return RentOrBuy(
        own_usd_per_gpu_hour=own / hours,
        rent_usd_per_gpu_hour=rent_usd_per_hour,
        own_usd=own * purchase.years,
        rent_usd=rented * purchase.years,
        years=purchase.years,
        break_even_months=months,
        break_even_utilisation=needed if needed <= 1 else None,
        cheaper="own" if own < rented else "rent",
        parts_usd={name: usd * purchase.years for name, usd in parts.items()},
    )


def _break_even_months(purchase: Purchase, gpus: int, rented: float, running: float) -> float | None:
    """Months until the rent that is spared has paid the price, what is owed bearing interest; None where the years end first."""
    owed, month = purchase.usd_per_gpu * gpus, 0
    spared = (rented - running) / _MONTHS
    while month < purchase.years * _MONTHS:
        interest = owed * purchase.interest / _MONTHS
        if owed + interest <= spared:
            return month + (owed + interest) / spared
        owed += interest - spared
        month += 1
    return None


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    """Dollars of a million tokens at so many a second: 8 dollars an hour at 50 tokens a second are 44.4."""
    return usd_per_hour / 3600 / tokens_per_s * 1e6
