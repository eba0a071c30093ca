"""Options of a purchase: which cards may be bought, at what price, within what limits."""

from __future__ import annotations

from trilemma.ask.options import RECOMMEND, Option
from trilemma.ask.reading import as_given, number, text, whole_number

_OF = (RECOMMEND,)
PURCHASE: tuple[Option, ...] = (
    Option(name="include", of=_OF, read=as_given, metavar="NAME[,…]", group="cards",
           help="cards, makers or architectures to choose among (default: the whole catalogue)"),
    Option(name="exclude", of=_OF, read=as_given, metavar="NAME[,…]", group="cards", help="those never to choose"),
    Option(name="price", of=_OF, read=as_given, metavar="NAME=USD[,…]", group="cards",
           help="your own price of a GPU and hour, such as h100-sxm=2.10; or a CSV file of name,usd_per_hour"),
    Option(name="usd_per_kwh", of=_OF, read=number, metavar="USD", group="cards",
           help="price of a kilowatt-hour: what cards draw is added to their price (default: it is within it)"),
    Option(name="by", of=_OF, read=text, group="cards", default="price", choices=("price", "gpus", "power"),
           help="what is spared first: dollars an hour (default; cards with a known price), GPUs, or the watts that they draw"),
    Option(name="budget_per_hour", of=_OF, read=number, metavar="USD", group="limits", help="most dollars of an hour"),
    Option(name="budget", of=_OF, read=number, metavar="USD", group="limits",
           help="most dollars of the whole training run (with --tokens)"),
    Option(name="days", of=_OF, read=number, metavar="D", group="limits",
           help="most days of the training run (with --tokens)"),
    Option(name="max_gpus", of=_OF, read=whole_number, metavar="N", group="limits", help="most GPUs"),
    Option(name="max_kw", of=_OF, read=number, metavar="KW", group="limits",
           help="most kilowatts that the cards may draw, by the end of their range"),
)  # fmt: skip
