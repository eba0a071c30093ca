"""Serving terms as the text of a data file: a row of numbers for every key of every level, and the spreads by class."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from trilemma.data.files import table_text
from trilemma.timing.serving_terms import LEVELS, Priors, ServingTerms

_DIGITS = 4
_ABOUT = "Logarithms of the multipliers of `terms`, a row for every key of every level; made by a command, not by hand."


def to_text(terms: ServingTerms, priors: Priors, *, as_of: str, made_by: str) -> str:
    """``terms`` as JSON that `trilemma.timing.serving_terms.from_document` reads."""
    used = {level: [term for term in priors.terms if priors.widths[term][at] > 0] for at, level in enumerate(LEVELS)}
    document: dict[str, Any] = {
        "about": _ABOUT,
        "schema": 2,
        "as_of": as_of,
        "source": terms.source,
        "made_by": made_by,
        "terms": used,
        "offsets": {
            level: {key: [round(rows[key].get(term, 0.0), _DIGITS) for term in used[level]] for key in sorted(rows)}
            for level, rows in zip(LEVELS, terms.offsets, strict=True)
        },
        "models": {key: sorted(shapes) for key, shapes in sorted(terms.seen.deployments.items())},
        "figures": {engine: sorted(names) for engine, names in sorted(terms.figures.items())},
        "origins": sorted(terms.origins),
        "apart": {figure: round(half, _DIGITS) for figure, half in sorted(terms.apart.items())},
        "spread": [asdict(replace(spread, half=round(spread.half, _DIGITS))) for spread in terms.spreads],
    }
    return table_text(document)
