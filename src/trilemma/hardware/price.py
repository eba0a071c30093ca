"""What stands behind a card's price, in words: the middle of public offers, one price alone, or a placeholder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trilemma.errors import PlanWarning
from trilemma.hardware.accelerator import Accelerator

#: From this ratio of the dearest public offer to the cheapest on, a price says little of what a user pays.
_WIDE = 2.0


def price_words(card: Accelerator) -> str:
    """The price of an hour of one card and how it is made: readers keep the geometric mean of the extreme offers."""
    price = card.usd_per_hour
    if price is None:
        return f"no public price is known for {card.id}"
    if price.high > price.low:
        told = f"${price.value:,.2f} an hour, the geometric mean of public offers of ${price.low:,.2f} – ${price.high:,.2f}"
    else:
        told = f"${price.value:,.2f} an hour, the one public figure"
    made_up = ", in part a placeholder of its source" if is_placeholder(card) else ""
    return f"price of {card.name}: {told}{made_up}, {card.price_as_of}"


def is_placeholder(card: Accelerator) -> bool:
    """Whether an end of the price is no offer but a figure that its source put in its place."""
    return "placeholder" in card.price_source


def price_warnings(cards: Iterable[Accelerator]) -> Iterator[PlanWarning]:
    """What must be known of the prices before the dollars are believed: unknown, made up, or twofold apart."""
    for card in {card.id: card for card in cards}.values():
        price = card.usd_per_hour
        if price is None:
            yield PlanWarning(code="no-price", message=price_words(card))
        elif is_placeholder(card) or price.high > _WIDE * price.low:
            yield PlanWarning(code="price", message=price_words(card))
