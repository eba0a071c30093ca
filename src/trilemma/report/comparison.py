"""GPUs side by side, for people and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from trilemma.hardware.accelerator import Accelerator
from trilemma.intervals import Interval
from trilemma.quantities import GIB, show_count
from trilemma.report.document import estimate_document
from trilemma.report.plans import load_words, memory_bar, money, seconds, weights_words
from trilemma.report.tables import render_table
from trilemma.search.compare import Candidate, Comparison
from trilemma.search.found import Found

COMPARISON_SCHEMA = "trilemma/comparison@1"
_CARD = ("GPU", "usable GiB", "TB/s", "matrix formats in hardware", "$/GPU-hour", "price of")
_RUN = (
    "GPUs", "weights", "KV", "plan", "tok/s/GPU", "tok/s/user", "TTFT", "TPOT", "$/M tok", "J/tok", "memory per GPU",
    "bound by",
)  # fmt: skip


def render_comparison(comparison: Comparison, *, model: str, width: int = 120) -> str:
    """Cards first, then the best plan of each as published and in any precision, then what to know."""
    cards = {candidate.cluster.accelerator.id: candidate.cluster.accelerator for candidate in comparison.candidates}
    parts = [f"{model}: {load_words(comparison.workload)}, on each GPU its best plan"]
    parts += [f"assumed: {words}" for words in comparison.assumed]
    parts += ["", *render_table(_CARD, [_card(card) for card in cards.values()], align="lrrlrl").splitlines()]
    rows = [row for candidate in comparison.candidates for row in _rows(candidate)]
    parts += ["", *render_table(_RUN, rows, align="llllrrrrrrll").splitlines(), "", *_notes(comparison, width)]
    return "\n".join(line.rstrip() for line in parts)


def comparison_document(comparison: Comparison, *, model: str, explain: bool = False) -> dict[str, Any]:
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


def _rows(candidate: Candidate) -> Iterator[list[str]]:
    name = f"{candidate.cluster.gpus} x {candidate.cluster.accelerator.name}"
    if candidate.best is None:
        why = candidate.refused or "does not fit"
        more = f", fits as published from {candidate.least_gpus} GPUs" if candidate.least_gpus else ""
        yield [name, "–", "–", f"{why}{more}", *["–"] * 7, "capacity"]
        return
    if candidate.published is None:
        more = f", fits from {candidate.least_gpus} GPUs" if candidate.least_gpus else ""
        yield [name, "as published", "–", f"does not fit{more}", *["–"] * 7, "capacity"]
    else:
        yield _run(name, candidate.published, candidate.published_meets)
    same = candidate.published is not None and candidate.published.estimate.extras == candidate.best.estimate.extras
    if not same:
        yield _run(name, candidate.best, candidate.best_meets)


def _run(name: str, found: Found, meets: bool) -> list[str]:
    answer, speed = found.estimate, found.estimate.speed
    plan = f"{answer.inputs['plan']['summary']}, {show_count(found.requests)} at once"
    head = [
        name,
        weights_words(found),
        found.kv_format,
        plan + ("" if meets else " (misses)"),
    ]
    if speed is None or speed.tokens_per_s_per_gpu is None or speed.tpot_s is None or speed.ttft_s is None:
        return [*head, *["–"] * 6, memory_bar(answer), "capacity"]
    joules = answer.joules_per_token
    return [
        *head,
        show_count(speed.tokens_per_s_per_gpu.value),
        f"{1 / speed.tpot_s.interval.value:,.1f}",
        seconds(speed.ttft_s),
        seconds(speed.tpot_s),
        money(answer.usd_per_million_tokens),
        "–" if joules is None else f"{joules:,.2f}",
        memory_bar(answer),
        answer.bottleneck.resource.replace("_", " ") if answer.bottleneck else "",
    ]


def _notes(comparison: Comparison, width: int) -> Iterator[str]:
    """What the figures rest on: price sources, energy, and the cautions of the plans, each once."""
    notes = ["energy counts every GPU at its board power limit, so it is an upper bound"]
    for card in {c.cluster.accelerator.id: c.cluster.accelerator for c in comparison.candidates}.values():
        if card.usd_per_hour is not None:
            notes.append(f"price of {card.name}: {card.price_source}, {card.price_as_of}")
        else:
            notes.append(f"price of {card.name}: none known")
    for candidate in comparison.candidates:
        for found in (candidate.published, candidate.best):
            notes += [caution.message for caution in found.estimate.warnings] if found else []
    for note in dict.fromkeys(notes):
        yield from textwrap.wrap(note, width, initial_indent="note: ", subsequent_indent="      ")
