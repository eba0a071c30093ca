"""How far a verdict is to be trusted beside what was not counted, assumed, or never measured: one rule for all answers.

Every warning whose code stands in ``data/doubts.toml`` takes a share of doubt: with that chance the figures say nothing of the
outcome. Shares combine as independent, so a verdict of probability p becomes ``1/2 + (p - 1/2) * product(1 - share)``: the order
in which warnings are told does not matter, a warning told twice counts once, and yes never becomes no.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import PlanWarning
from trilemma.estimate.estimate import Estimate, Verdict
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.models.kinds import family_kind
from trilemma.quantities import counted


def with_warnings(answer: Estimate, warnings: Iterable[PlanWarning]) -> Estimate:
    """``answer`` with ``warnings`` told before its own, its verdict no surer than they leave it."""
    more = tuple(warnings)
    told = {one.code for one in answer.warnings}
    verdict = doubted(answer.verdict, (one for one in more if one.code not in told))
    return replace(answer, verdict=verdict, warnings=(*more, *answer.warnings))


def doubted(verdict: Verdict, warnings: Iterable[PlanWarning]) -> Verdict:
    """``verdict`` as sure as ``warnings``, each code once, leave it; what a log says itself is not doubted."""
    if verdict.measured:
        return verdict
    shares = {one.code: share_of(one, fits=verdict.stage == "ok") for one in warnings}
    kept = math.prod(1 - share for share in shares.values())
    return replace(verdict, probability=0.5 + (verdict.probability - 0.5) * kept)


def share_of(warning: PlanWarning, *, fits: bool) -> float:
    """The share of doubt of one warning beside a verdict that says ``fits`` or not; 0 for what leaves it as sure."""
    if warning.share is not None:
        return warning.share
    row = _rows().get(warning.code)
    if row is None or (row.get("adds") and not fits) or (row.get("lessens") and fits):
        return 0.0
    return float(row["share"])


def of_model(model: Model) -> list[PlanWarning]:
    """What its reader assumed of a model, left out and did not understand."""
    found = [
        PlanWarning(code="part-not-counted" if text in model.left_out else "model-assumption", message=text)
        for text in model.assumptions
    ]
    if model.unknown_fields:
        names = ", ".join(model.unknown_fields[:8])
        message = f"fields of the model's configuration not understood: {names}"
        found.append(PlanWarning(code="unknown-fields", message=message))
    return found


def of_served_class(engine: str, model: Model, card: Accelerator) -> list[PlanWarning]:
    """How few start-up logs told engine, maker of the card and kind of model; nothing where many did."""
    kind = family_kind(model)
    found = [row["kinds"] for row in _file()["measured"] if row["engine"] == engine and row["vendor"] == card.vendor]
    rows, missed = next((kinds[kind] for kinds in found if kind in kinds), (0, 0))
    return _of_class(rows, missed, logs="start-up log", of=f"{kind} models under {engine} on {card.vendor}")


def of_trained_class(implementation: str, card: Accelerator, *, adapters: bool) -> list[PlanWarning]:
    """How few measured peaks told a training framework on cards of this maker; nothing where many did."""
    way = "adapters" if adapters else "whole"
    found = [
        row["ways"]
        for row in _file()["trained"]
        if row["implementation"] == implementation and row["vendor"] == card.vendor
    ]
    rows, missed = next((ways[way] for ways in found if way in ways), (0, 0))
    what = "adapters" if adapters else "whole models"
    return _of_class(rows, missed, logs="measured peak", of=f"{what} trained by {implementation} on {card.vendor}")


def _of_class(rows: int, missed: int, *, logs: str, of: str) -> list[PlanWarning]:
    classes = _file()["classes"]
    prior = classes["prior_rows"]
    share = 2 * (missed + classes["prior_missed"] * prior) / (rows + prior)
    if share < classes["few"]:
        return []
    ended = f", {missed} of them ended otherwise than said" if missed else ""
    told = f"{counted(rows, logs)} told" if rows else f"no {logs} told"
    return [PlanWarning(code="memory-unmeasured", message=f"{told} the memory of {of}{ended}", share=round(share, 4))]


@cache
def _file() -> Mapping[str, Any]:
    return read_data("doubts.toml")


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    return {code: row for row in _file()["doubt"] for code in row["codes"]}
