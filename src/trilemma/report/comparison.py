"""GPUs side by side, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.price import price_words
from trilemma.intervals import Interval
from trilemma.quantities import GIB, counted, show_count
from trilemma.report.document import estimate_document
from trilemma.report.plan_words import load_words, memory_bar, money, seconds, weights_words
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped
from trilemma.search.compare import Candidate, CardComparison
from trilemma.search.found import Found

COMPARISON_SCHEMA = "trilemma/comparison@1"
_CARD = ("GPU", "usable GiB", "TB/s", "matrix formats in hardware", "$/GPU-hour", "price of")
#: Columns that give way where the window is narrow, the first first.
_CARD_YIELDS = ("price of", "matrix formats in hardware")
_RUN_YIELDS = ("bound by", "memory per GPU", "kW", "J/tok", "tok/s/user", "$/h")
#: Columns of a window from which on the ranges of the figures stand below them.
_WIDE = 120
_RUN = (
    "GPUs", "weights, KV", "plan", "tok/s/GPU", "tok/s/user", "mean TTFT", "mean TPOT", "$/M tok", "J/tok", "$/h", "kW",
    "memory per GPU",    "bound by",
)  # fmt: skip


def render_comparison(comparison: CardComparison, *, model: str, width: int = 120) -> str:
    """Cards first, then the best plan of each as published and in any precision, then what to know."""
    cards = {candidate.cluster.accelerator.id: candidate.cluster.accelerator for candidate in comparison.candidates}
    parts = [f"{model}: {load_words(comparison.workload)}, on each GPU its best plan"]
    parts += [f"assumed: {words}" for words in comparison.assumed]
    known = render_table(
        _CARD, [_card(one) for one in cards.values()], align="lrrlrl", width=width, yields=_CARD_YIELDS
    )
    parts += ["", *known.splitlines()]
    ranges = width >= _WIDE
    rows = [row for candidate in comparison.candidates for row in _rows(candidate, ranges=ranges)]
    table = render_table(_RUN, rows, align="lllrrrrrrrrll", width=width, yields=_RUN_YIELDS)
    parts += ["", *table.splitlines(), *_ranges_said(comparison, ranges=ranges)]
    parts += ["", *_notes(comparison, width)]
    return "\n".join(line.rstrip() for line in parts)


def comparison_document(comparison: CardComparison, *, model: str, explain: bool = False) -> dict[str, Any]:
    """``{"schema", "model", "workload", "candidates": [{accelerator facts, "published": estimate, "best": estimate}]}``."""
    return {
        "schema": COMPARISON_SCHEMA,
        "model": model,
        "workload": {
            name: getattr(comparison.workload, name)
            for name in ("isl", "osl", "concurrency", "rate", "ttft_ms", "tpot_ms")
            if getattr(comparison.workload, name) is not None
        },
        "assumed": list(comparison.assumed),
        "candidates": [_candidate(candidate, explain) for candidate in comparison.candidates],
    }


def _candidate(candidate: Candidate, explain: bool) -> dict[str, Any]:
    card = candidate.cluster.accelerator
    document: dict[str, Any] = {
        "accelerator": {"id": card.id, "name": card.name},
        "gpus": candidate.cluster.gpus,
        "usable_bytes": int(card.runtime_total().value),
        "bandwidth_bytes_per_s": card.bandwidth_bytes_per_s.value,
        "hardware_formats": list(card.hardware_formats),
        "fits": candidate.best is not None,
    }
    optional: Mapping[str, Any] = {
        "fp8_flavour": card.fp8_flavour,
        "price": _price(card),
        "least_gpus": candidate.least_gpus,
        "refused": candidate.refused or None,
        "published": estimate_document(candidate.published.estimate, explain=explain) if candidate.published else None,
        "published_meets_targets": candidate.published_meets if candidate.published else None,
        "best": estimate_document(candidate.best.estimate, explain=explain) if candidate.best else None,
        "best_meets_targets": candidate.best_meets if candidate.best else None,
    }
    return document | {name: value for name, value in optional.items() if value is not None}


def _price(card: Accelerator) -> dict[str, Any] | None:
    price = card.usd_per_hour
    if price is None:
        return None
    return {
        "usd_per_gpu_hour": price.value, "low": price.low, "high": price.high, "source": card.price_source,
        "as_of": card.price_as_of,
    }  # fmt: skip


def _card(card: Accelerator) -> list[str]:
    return [
        card.name,
        f"{card.runtime_total().value / GIB:,.1f}",
        f"{card.bandwidth_bytes_per_s.value / 1e12:,.2f}",
        formats_words(card),
        _range(card.usd_per_hour),
        card.price_as_of or "–",
    ]


def formats_words(card: Accelerator) -> str:
    """Formats with matrix units, the FP8 coding named: OCP E4M3 reaches 448, FNUZ 240."""
    names = []
    for name in card.hardware_formats:
        flavour = f" ({card.fp8_flavour.upper()})" if name == "fp8" and card.fp8_flavour else ""
        names.append(f"{name}{flavour}")
    return " ".join(names)


def _range(price: Interval | None) -> str:
    return "–" if price is None else f"{price.value:,.2f} ({price.low:,.2f} – {price.high:,.2f})"


def cards_words(candidate: Candidate) -> str:
    """``2 x H100 SXM5 80GB``."""
    return f"{candidate.cluster.gpus} x {candidate.cluster.accelerator.name}"


def missing_words(candidate: Candidate) -> str | None:
    """What does not fit, and how many GPUs would hold it; None where weights and cache as published fit."""
    if candidate.published is not None:
        return None
    enough = f"fits as published from {counted(candidate.least_gpus, 'GPU')}" if candidate.least_gpus else ""
    carried = f"{counted(candidate.least_gpus, 'GPU')} carry it" if candidate.least_gpus else ""
    if candidate.refused:
        return candidate.refused
    if candidate.best is None and candidate.starts:
        return ", ".join(one for one in ("fits, but does not carry the load", carried) if one)
    why = "does not fit" if candidate.best is None else "does not start or does not carry the load as published"
    return f"{why}, {enough}" if enough else why


def shown_plans(candidate: Candidate) -> Iterator[tuple[str, Found, bool]]:
    """Its plans as published and in the best precision, with whether each meets the targets; once where they are one."""
    published, best = candidate.published, candidate.best
    if published is not None:
        yield "as published", published, candidate.published_meets
    if best is not None and (published is None or _told(published) != _told(best)):
        yield "best precision", best, candidate.best_meets


def _told(found: Found) -> tuple[Any, ...]:
    answer = found.estimate
    return answer.command, answer.commands, answer.start_up, answer.targets, answer.refused


def _rows(candidate: Candidate, *, ranges: bool) -> Iterator[list[str]]:
    """Each plan in a row, and the 90 % ``ranges`` of its figures in the row below."""
    name, missing = cards_words(candidate), missing_words(candidate)
    if missing is not None:
        yield [name, "–", missing, *["–"] * 9, "load" if candidate.starts else "capacity"]
    for _, found, meets in shown_plans(candidate):
        yield _run(f"{found.gpus} x {candidate.cluster.accelerator.name}", found, meets, candidate)
        if ranges:
            yield _ranges(found)


def _run(name: str, found: Found, meets: bool, candidate: Candidate) -> list[str]:
    answer, speed = found.estimate, found.estimate.speed
    plan = f"{answer.summary}, {show_count(found.requests)} at once"
    head = [
        name,
        f"{weights_words(found)}, {found.kv_format}",
        plan + ("" if meets else " (misses the targets)") + (f", {candidate.engine}" if candidate.instead_of else ""),
    ]
    if speed is None or speed.tokens_per_s_per_gpu is None or speed.tpot_s is None or speed.ttft_s is None:
        return [*head, *["–"] * 8, memory_bar(answer), "capacity"]
    return [
        *head,
        show_count(speed.tokens_per_s_per_gpu.value),
        f"{1 / speed.tpot_s.interval.value:,.1f}",
        seconds(speed.ttft_s),
        seconds(speed.tpot_s),
        money(answer.usd_per_million_tokens),
        "–" if answer.joules_per_token is None else f"{answer.joules_per_token.value:,.2f}",
        money(answer.usd_per_hour),
        "–" if answer.watts is None else f"{answer.watts.value / 1e3:,.1f}",
        memory_bar(answer),
        answer.bottleneck.resource.replace("_", " ") if answer.bottleneck else "",
    ]


def _ranges(found: Found) -> list[str]:
    """The 90 % ranges of a row's figures, in the units of the row."""
    answer, speed = found.estimate, found.estimate.speed
    cells = [""] * len(_RUN)
    if speed is None or speed.tokens_per_s_per_gpu is None or speed.tpot_s is None or speed.ttft_s is None:
        return cells
    rate, ttft, tpot = speed.tokens_per_s_per_gpu, speed.ttft_s.interval, speed.tpot_s.interval
    users = Interval(value=1 / tpot.value, low=1 / tpot.high, high=1 / tpot.low)
    cells[3:7] = [_ends(rate, 0), _ends(users, 1), _ends_of_seconds(ttft), _ends_of_seconds(tpot)]
    if answer.usd_per_million_tokens is not None:
        cells[7] = _ends(answer.usd_per_million_tokens, 2)
    return cells


def _ends(interval: Interval, digits: int) -> str:
    return f"{interval.low:,.{digits}f} – {interval.high:,.{digits}f}"


def _ends_of_seconds(interval: Interval) -> str:
    """Both ends in the unit in which `seconds` shows the middle."""
    if interval.value >= 1:
        return _ends(interval, 2)
    return _ends(interval.scaled(1e3), 1 if interval.value < 0.1 else 0)


def _ranges_said(comparison: CardComparison, *, ranges: bool) -> Iterator[str]:
    if not ranges:
        yield f"90 % ranges of the figures: in --json, or in a window of {_WIDE} columns"
    elif any(candidate.best is not None for candidate in comparison.candidates):
        yield "below each figure its 90 % range; that of $/M tok spans the public prices too"


def _notes(comparison: CardComparison, width: int) -> Iterator[str]:
    """What the figures rest on: price sources, energy, and the warnings of the plans, each once with the rows it is of."""
    notes = ["kW is what the GPUs draw under the load, hosts and cooling apart"]
    cards = {one.cluster.accelerator.id: one.cluster.accelerator for one in comparison.candidates}.values()
    notes += [price_words(card) + (f": {card.price_source}" if card.price_source else "") for card in cards]
    notes += [
        f"{cards_words(one)}: no rules of {one.instead_of} on it are known here, judged on {one.engine}"
        for one in comparison.candidates
        if one.instead_of
    ]
    notes += [
        f"{cards_words(one)}: {words}"
        for one in comparison.candidates
        for words in one.assumed
        if words not in comparison.assumed
    ]
    for message, rows in _warnings(comparison).items():
        notes.append(f"{rows}: {message}" if rows else message)
    for note in notes:
        yield from wrapped(note, width, initial_indent="note: ", subsequent_indent="      ")


def _warnings(comparison: CardComparison) -> dict[str, str]:
    """PlanWarning → the rows it is of, in words; nothing where it is of all."""
    plans = [(candidate, found) for candidate in comparison.candidates for _, found, _ in shown_plans(candidate)]
    told: dict[str, list[tuple[Candidate, Found]]] = {}
    for candidate, found in plans:
        for message in dict.fromkeys(one.message for one in found.estimate.warnings if "price" not in one.code):
            told.setdefault(message, []).append((candidate, found))
    return {message: "" if len(of) == len(plans) else _rows_words(of) for message, of in told.items()}


def _rows_words(of: list[tuple[Candidate, Found]]) -> str:
    """The cards, and the one of their rows that is meant where there are two."""
    words = []
    for candidate in {id(candidate): candidate for candidate, _ in of}.values():
        mine = [found for one, found in of if one is candidate]
        whole = len(mine) == len(list(shown_plans(candidate)))
        words.append(cards_words(candidate) + ("" if whole else f" ({plan_words(mine[0])})"))
    return ", ".join(words)


def plan_words(found: Found) -> str:
    """What tells the plans of one kind of GPU apart: weights and cache."""
    return f"{weights_words(found)}, KV {found.kv_format}"
