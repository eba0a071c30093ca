"""The cards among which a purchase is chosen: prices, names left out, and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trilemma.capacity.choice import CardChoice, SparedFirst
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import all_accelerators, find
from trilemma.intervals import Interval
from trilemma.timing.power import power_terms

SPARED_FIRST: tuple[SparedFirst, ...] = ("price", "gpus", "power")
_NO_WATTS = "board power unknown"
#: Dollars of a kilowatt-hour beyond which a figure is one of something else.
_MOST_USD_PER_KWH = 100.0
#: More GPUs than this are no purchase that one answer can settle.
MOST_GPUS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a purchase may not pass: dollars of an hour, dollars of the whole run, watts that cards draw, GPUs, days of a run."""

    usd_per_hour: float | None = None
    usd: float | None = None
    watts: float | None = None
    gpus: int = MOST_GPUS
    days: float | None = None

    def __post_init__(self) -> None:
        for name, option in {
            "usd_per_hour": "budget_per_hour",
            "usd": "budget",
            "watts": "max_kw",
            "days": "days",
        }.items():
            value = getattr(self, name)
            if value is not None and not value > 0:
                stated = value / 1e3 if name == "watts" else value
                raise InputError(f"`{option}` {stated:g} is a limit that leaves nothing; give a number above 0")
        if not 1 <= self.gpus <= MOST_GPUS:
            raise InputError(f"`max_gpus` {self.gpus} is out of range; give 1 to {MOST_GPUS}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in ("usd_per_hour", "usd", "watts", "days") if getattr(self, name) is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offers:
    """Cards that may be bought, and why others may not: ``left_out`` counts them. A kilowatt-hour of what they draw costs
    ``usd_per_kwh``; 0 where that is within their price."""

    cards: tuple[Accelerator, ...]
    spared: SparedFirst
    usd_per_kwh: float = 0.0
    left_out: Counter[str] = field(default_factory=Counter)

    def least_cost(self, card: Accelerator, gpus: float) -> float:
        """What ``gpus`` of ``card`` take at least of that which is spared first: dollars an hour, cards, or watts, those of cards
        that do nothing."""
        limit = 0.0 if card.tdp_w is None else card.tdp_w.value
        return self.cost(card, gpus, gpus * limit * power_terms(card).shares["idle"])

    def cost(self, card: Accelerator, gpus: float, watts: float) -> float:
        """What ``gpus`` of ``card`` that draw ``watts`` together take of that which is spared first. Lower is better."""
        if self.spared == "gpus":
            return gpus
        if self.spared == "power":
            return watts
        assert card.usd_per_hour is not None
        return gpus * card.usd_per_hour.value + self.electricity(watts)

    def electricity(self, watts: float) -> float:
        """Dollars an hour of ``watts``."""
        return watts / 1e3 * self.usd_per_kwh

    def chosen(self, card: Accelerator, gpus: int, estimate: Estimate, stored: str, **run: Any) -> CardChoice | str:
        """``gpus`` of ``card`` under the plan of ``estimate`` as a choice, or why it is none."""
        watts = estimate.watts
        if watts is None and (self.spared == "power" or self.usd_per_kwh):
            return _NO_WATTS
        electricity = None if watts is None or not self.usd_per_kwh else watts.scaled(self.usd_per_kwh / 1e3)
        cost = self.cost(card, gpus, 0.0 if watts is None else watts.value)
        return CardChoice(
            card=card, gpus=gpus, cost=cost, estimate=estimate, stored=stored, electricity=electricity, **run
        )


def offers(
    *,
    spared: SparedFirst = "price",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    prices: Mapping[str, float] | None = None,
    usd_per_kwh: float | None = None,
) -> Offers:
    """The cards of the catalogue that ``include`` names (none: all) without those of ``exclude``, at ``prices`` where given
    (name → dollars of a GPU and hour), to which what they draw comes at ``usd_per_kwh``.

    A word of ``exclude`` or ``include`` is a card's name, or that of a maker or architecture. Cards of which the figure that
    is spared first is not known are left out and counted. Raises `InputError` for words that name nothing.
    """
    if usd_per_kwh is not None and not 0 < usd_per_kwh < _MOST_USD_PER_KWH:
        raise InputError(
            f"`usd_per_kwh` {usd_per_kwh:g} is out of range; give dollars of a kilowatt-hour, such as 0.12"
        )
    told = {find(name).id: usd for name, usd in (prices or {}).items()}
    cards = {card.id: card for card in all_accelerators()}
    for card in (*_named(include, cards.values()), *(find(name) for name in (prices or {}))):
        cards.setdefault(card.id, card)  # data files of one's own
    wanted = {card.id for card in _named(include, cards.values())} or set(cards)
    wanted -= {card.id for card in _named(exclude, cards.values())}
    left_out: Counter[str] = Counter()
    kept = []
    for name in wanted:
        card = cards[name]
        if name in told:
            card = _at(card, told[name])
        if _known(card, spared):
            kept.append(card)
        else:
            left_out["no public price is known; name one with --price" if spared == "price" else _NO_WATTS] += 1
    kept.sort(key=lambda card: card.id)
    return Offers(cards=tuple(kept), spared=spared, usd_per_kwh=usd_per_kwh or 0.0, left_out=left_out)


def _named(words: Sequence[str], cards: Iterable[Accelerator]) -> list[Accelerator]:
    found: list[Accelerator] = []
    for word in words:
        kind = [card for card in cards if word.lower() in (card.vendor.lower(), *card.architecture.lower().split())]
        found += kind or [find(word)]
    return found


def _at(card: Accelerator, usd: float) -> Accelerator:
    return replace(card, usd_per_hour=Interval.exact(usd), price_source="given", price_as_of="")


def _known(card: Accelerator, spared: SparedFirst) -> bool:
    if spared == "price":
        return card.usd_per_hour is not None
    return spared == "gpus" or card.tdp_w is not None
