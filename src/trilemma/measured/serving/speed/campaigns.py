"""Campaigns whose layouts are not what their columns say: one row of fewer cards than its weights fill gives them all away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from trilemma.engines import traits_of
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.tables import Row
from trilemma.models.architecture import Model
from trilemma.models.identity import ByIdentity
from trilemma.models.parameters import weight_bytes

Question = SpeedQuestion | str


def with_trust(rows: Sequence[Row], questions: Sequence[Question]) -> list[Question]:
    """``questions``, those refused whose weights their cards cannot hold; other rows of such a campaign count nothing in fits.

    A campaign is what one source ran with one release of an engine on one card: its layouts are told one way.
    """
    found = list(questions)
    betrayed = set()
    for at, question in enumerate(questions):
        if isinstance(question, SpeedQuestion) and (why := _cannot_hold(question)):
            found[at] = why
            betrayed.add(_campaign(rows[at], question))
    for at, question in enumerate(found):
        if isinstance(question, SpeedQuestion) and question.trust > 0 and _campaign(rows[at], question) in betrayed:
            note = "counts nothing in fits: rows of its campaign state layouts that cannot hold their models"
            found[at] = replace(question, trust=0.0, assumed=(*question.assumed, note))
    return found


def _campaign(row: Row, question: SpeedQuestion) -> tuple[str, ...]:
    origin = row.text("notes")[:2000].partition(";")[0]
    return row.text("source_ref"), origin, question.engine, row.text("version"), question.accelerator.id


def _cannot_hold(question: SpeedQuestion) -> str:
    """Why the cards of ``question`` do not hold its weights, "" where they do: each weight once, spread over all of them."""
    if traits_of(question.engine).weights == "gguf":
        return ""  # what does not fit stays on the host
    gpus = int(question.layout.gpus)
    n_bytes = _weights_bytes(ByIdentity(question.model))
    if n_bytes <= gpus * _card_bytes(ByIdentity(question.accelerator)):
        return ""
    return f"{n_bytes / 1e9:.0f} GB of weights do not lie in {gpus} x {question.accelerator.id}: the layout is another"


@lru_cache(maxsize=1024)
def _weights_bytes(same: ByIdentity) -> float:
    assert isinstance(same.value, Model)
    return float(weight_bytes(same.value))


@lru_cache(maxsize=512)
def _card_bytes(same: ByIdentity) -> float:
    assert isinstance(same.value, Accelerator)
    return float(same.value.runtime_total().high)
