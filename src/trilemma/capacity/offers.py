"""The cards among which a purchase is chosen: prices, names left out, and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import all_accelerators, find
from trilemma.intervals import Interval

#: What is spared first: dollars of an hour, cards, or watts of their boards.
SparedFirst = Literal["price", "gpus", "power"]
SPARED_FIRST: tuple[SparedFirst, ...] = ("price", "gpus", "power")
#: More GPUs than this are no purchase that one answer can settle.
MOST_GPUS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a purchase may not pass: dollars of an hour, dollars of the whole run, watts of the boards, GPUs, days of a run."""

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
    """Cards that may be bought, and why others may not: ``left_out`` counts them."""

    cards: tuple[Accelerator, ...]
    spared: SparedFirst
    left_out: Counter[str] = field(default_factory=Counter)

    def cost(self, card: Accelerator, gpus: float) -> float:
        """What ``gpus`` of ``card`` take of that which is spared first: dollars an hour, cards, or watts. Lower is better."""
        return gpus * _rate(card, self.spared)


def offers(
    *,
    spared: SparedFirst = "price",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    prices: Mapping[str, float] | None = None,
) -> Offers:
    """The cards of the catalogue that ``include`` names (none: all) without those of ``exclude``, at ``prices`` where given
    (name → dollars of a GPU and hour).

    A word of ``exclude`` or ``include`` is a card's name, or that of a maker or architecture. Cards of which the figure that
    is spared first is not known are left out and counted. Raises `InputError` for words that name nothing.
    """
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
            left_out[
                "no public price is known; name one with --price" if spared == "price" else "board power unknown"
            ] += 1
    return Offers(cards=tuple(sorted(kept, key=lambda card: card.id)), spared=spared, left_out=left_out)


def _named(words: Sequence[str], cards: Iterable[Accelerator]) -> list[Accelerator]:
    found: list[Accelerator] = []
    for word in words:
        kind = [card for card in cards if word.lower() in (card.vendor.lower(), *card.architecture.lower().split())]
        found += kind or [find(word)]
    return found


def _at(card: Accelerator, usd: float) -> Accelerator:
    if not 0 < usd < 1e6:
        raise InputError(f"`price` {usd:g} of {card.id} is out of range; give dollars of one GPU and hour, above 0")
    return replace(card, usd_per_hour=Interval.exact(usd), price_source="given", price_as_of="")


def _known(card: Accelerator, spared: SparedFirst) -> bool:
    if spared == "price":
        return card.usd_per_hour is not None
    return spared == "gpus" or card.tdp_w is not None


def _rate(card: Accelerator, spared: SparedFirst) -> float:
    if spared == "price":
        assert card.usd_per_hour is not None
        return card.usd_per_hour.value
    if spared == "power":
        assert card.tdp_w is not None
        return card.tdp_w.value
    return 1.0
