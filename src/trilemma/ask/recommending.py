"""Which cards to take for a need, and how many."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.ask.nouns import engine_of, model_of, workload_of
from trilemma.ask.reading import number
from trilemma.ask.recommended import CardsRecommended
from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text

if TYPE_CHECKING:
    from trilemma.capacity.offers import Limits, Offers

#: Rows of a price file, and bytes of it.
_MOST_PRICES = 10_000
_MOST_CHOICES = 50


def for_serving(model: Any, options: SimpleNamespace) -> CardsRecommended:
    """The cheapest cards that carry a serving load."""
    from trilemma.capacity.serving import recommend_serving
    from trilemma.estimate.pooling import check_generates

    for name in ("budget", "days"):
        if getattr(options, name) is not None:
            raise InputError(f"`{name}` is of a training run; give `train` and `tokens` with it, or `budget_per_hour`")
    named = model_of(model, options.models)
    check_generates(named)
    return CardsRecommended.of(
        recommend_serving(
            named,
            workload_of(options),
            _offers(options),
            top=_top(options),
            limits=_limits(options),
            engine=engine_of(options.engine),
            precision=options.precision,
            kv_dtype=options.kv_dtype,
            confidence=options.confidence,
        )
    )


def for_training(model: Any, options: SimpleNamespace) -> CardsRecommended:
    """The cheapest cards that hold a training job, and finish it in time."""
    from trilemma.ask.training import run_terms, settled_of, training_workload_of
    from trilemma.capacity.training import recommend_training

    load = training_workload_of(options)
    for name in ("budget", "days"):
        if getattr(options, name) is not None and load.tokens is None:
            raise InputError(f"`{name}` needs the length of the run; give `tokens`, such as 2B")
    return CardsRecommended.of(
        recommend_training(
            model_of(model, options.models),
            load,
            _offers(options),
            settled=settled_of(options),
            top=_top(options),
            limits=_limits(options),
            terms=run_terms(options),
        )
    )


def _top(options: SimpleNamespace) -> int:
    top: int = options.top
    if not 1 <= top <= _MOST_CHOICES:
        raise InputError(f"`top` {top} is out of range; give 1 to {_MOST_CHOICES}")
    return top


def _offers(options: SimpleNamespace) -> Offers:
    from trilemma.capacity.offers import offers

    return offers(
        spared=options.by,
        include=_names(options.include, "include"),
        exclude=_names(options.exclude, "exclude"),
        prices=prices_of(options.price),
        usd_per_kwh=options.usd_per_kwh,
    )


def _limits(options: SimpleNamespace) -> Limits:
    from trilemma.capacity.offers import MOST_GPUS, Limits

    return Limits(
        usd_per_hour=options.budget_per_hour,
        usd=options.budget,
        watts=None if options.max_kw is None else options.max_kw * 1e3,
        gpus=options.max_gpus or MOST_GPUS,
        days=options.days,
    )


def prices_of(given: Any) -> dict[str, float]:
    """``h100-sxm=2.1,l40s=0.8``, a mapping, or a CSV file of ``name,usd_per_hour`` → name → dollars of a GPU and hour."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): _usd(name, usd) for name, usd in given.items()}
    stated = str(given)
    if "=" not in stated:
        return _price_file(stated)
    found = {}
    for part in stated.split(","):
        name, sign, usd = part.partition("=")
        if not sign or not name.strip():
            raise InputError(f"`price` {shorten(part)!r} is not NAME=USD, such as h100-sxm=2.10")
        found[name.strip()] = _usd(name, usd)
    return found


def _price_file(path: str) -> dict[str, float]:
    text = read_text(path, what="`price`", give="give NAME=USD such as h100-sxm=2.10, or a CSV file of them")
    try:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    except csv.Error as error:
        raise InputError(f"`price` {shorten(path)} is no CSV file ({error}); give rows of name,usd_per_hour") from None
    if rows and rows[0][0].strip().lower() in ("name", "gpu", "id"):
        rows = rows[1:]
    if len(rows) > _MOST_PRICES or any(len(row) < 2 for row in rows):
        raise InputError(f"`price` {shorten(path)}: rows are name,usd_per_hour, at most {_MOST_PRICES:,} of them")
    return {row[0].strip(): _usd(row[0], row[1]) for row in rows}


def _usd(name: Any, given: Any) -> float:
    try:
        return number(given)
    except InputError as error:
        raise InputError(f"`price` of {shorten(str(name))}: {error}; give dollars of a GPU and hour") from None


def _names(given: Any, option: str) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else list(given or ())
    found = [str(part).strip() for part in parts if str(part).strip()]
    if given is not None and not found:
        raise InputError(f"`{option}` names no card; leave it out or name one, such as h100-sxm")
    return found
