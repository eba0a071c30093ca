"""Which cards to take for a need, and how many."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.ask.nouns import engine_of, model_of, workload_of
from trilemma.ask.options import option_words
from trilemma.ask.reading import number
from trilemma.ask.recommended import CardsRecommended
from trilemma.ask.training_options import TRAINING
from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text

if TYPE_CHECKING:
    from trilemma.capacity.offers import Limits, Offers
    from trilemma.capacity.ranking import Progress

#: Rows of a price file, and bytes of it.
_MOST_PRICES = 10_000
_MOST_CHOICES = 50
#: Dollars of a GPU and hour beyond which a figure is one of something else.
_MOST_USD = 1e6


def for_serving(model: Any, options: SimpleNamespace, progress: Progress | None = None) -> CardsRecommended:
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
            progress=progress,
        )
    )


def for_training(model: Any, options: SimpleNamespace, progress: Progress | None = None) -> CardsRecommended:
    """The cheapest cards that hold a training job, and finish it in time."""
    from trilemma.ask.training import run_terms, settled_of, training_workload_of
    from trilemma.capacity.training import recommend_training

    load = training_workload_of(options)
    for name in ("budget", "days"):
        if getattr(options, name) is not None and load.tokens is None:
            raise InputError(f"`{name}` needs the length of the run; give `tokens`, such as 2B")
    named = model_of(model, options.models)
    found = recommend_training(
        named,
        load,
        _offers(options),
        settled=settled_of(options),
        top=_top(options),
        limits=_limits(options),
        terms=run_terms(options),
        progress=progress,
    )
    return CardsRecommended.of(replace(found, job=_job(model if isinstance(model, str) else named.name, options)))


def _job(model: str, options: SimpleNamespace) -> str:
    """The job as `trilemma plan` takes it; state stays on the cards as it does here."""
    kept = [] if options.offload is not None else ["--offload", "none"]
    return shlex.join([model, *option_words(options, TRAINING, without=("top",)), *kept])


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
    parts = [part.partition("=") for part in stated.split(",")]
    for name, sign, usd in parts:
        if not sign or not name.strip():
            raise InputError(f"`price` {shorten(name + sign + usd)!r} is not NAME=USD, such as h100-sxm=2.10")
    return _once((name.strip(), usd) for name, _, usd in parts)


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
    if not rows:
        raise InputError(f"`price` {shorten(path)} names no card; give rows of name,usd_per_hour")
    return _once((row[0].strip(), row[1]) for row in rows)


def _once(stated: Iterable[tuple[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, usd in stated:
        if name in found:
            raise InputError(f"`price` names {shorten(name)} twice; give each card once")
        found[name] = _usd(name, usd)
    return found


def _usd(name: Any, given: Any) -> float:
    try:
        usd = number(given)
    except InputError as error:
        raise InputError(f"`price` of {shorten(str(name))}: {error}; give dollars of a GPU and hour") from None
    if not 0 < usd < _MOST_USD:
        raise InputError(
            f"`price` {usd:g} of {shorten(str(name))} is out of range; give dollars of one GPU and hour, above 0"
        )
    return usd


def _names(given: Any, option: str) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else list(given or ())
    found = [str(part).strip() for part in parts if str(part).strip()]
    if given is not None and not found:
        raise InputError(f"`{option}` names no card; leave it out or name one, such as h100-sxm")
    return found
