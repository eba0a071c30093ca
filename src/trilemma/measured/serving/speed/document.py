"""Serving terms as the text of a data file: a row of numbers for every key of every level, and the spreads by class."""

from __future__ import annotations

from typing import Any

from trilemma.data.files import table_text
from trilemma.timing.serving_terms import LEVELS, Priors, ServingTerms

_DIGITS = 4
_ABOUT = "Logarithms of the multipliers of `terms`, a row for every key of every level; made by a command, not by hand."


def to_text(terms: ServingTerms, priors: Priors, *, as_of: str, made_by: str) -> str:
    """``terms`` as JSON that `trilemma.timing.serving_terms.from_document` reads."""
    document: dict[str, Any] = {
        "about": _ABOUT,
        "schema": 1,
        "as_of": as_of,
        "source": terms.source,
        "made_by": made_by,
        "terms": list(priors.terms),
        "offsets": {
            level: {key: [round(rows[key].get(term, 0.0), _DIGITS) for term in priors.terms] for key in sorted(rows)}
            for level, rows in zip(LEVELS, terms.offsets, strict=True)
        },
        "spread": [
            {
                **{name: getattr(spread, name) for name in ("figure", "family", "measured", "engine", "precision")},
                "low": round(spread.low, _DIGITS),
                "high": round(spread.high, _DIGITS),
                "rows": spread.rows,
            }
            for spread in terms.spreads
        ],
    }
    return table_text(document)
