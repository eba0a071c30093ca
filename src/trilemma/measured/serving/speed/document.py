"""Serving terms as the text of a data file: a row of numbers for every key of every level, and the spreads by class."""

from __future__ import annotations

import json

from trilemma.timing.serving_terms import LEVELS, Priors, ServingTerms

_DIGITS = 4


def to_toml(terms: ServingTerms, priors: Priors, *, as_of: str, made_by: str) -> str:
    """``terms`` as TOML that `trilemma.timing.serving_terms.from_document` reads."""
    lines = [
        "# Terms of serving fitted to measured runs; made by a command, not by hand.",
        "schema = 1",
        f"as_of = {as_of}",
        f"source = {json.dumps(terms.source, ensure_ascii=False)}",
        f"made_by = {json.dumps(made_by)}",
        "# each row holds the logarithms of the multipliers of these terms",
        f"terms = {json.dumps(list(priors.terms))}",
    ]
    for level, rows in zip(LEVELS, terms.offsets, strict=True):
        lines += ["", f"[offsets.{level}]"]
        for key in sorted(rows):
            row = [round(rows[key].get(term, 0.0), _DIGITS) for term in priors.terms]
            lines.append(f"{json.dumps(key)} = {json.dumps(row)}")
    for spread in terms.spreads:
        lines += [
            "",
            "[[spread]]",
            *(
                f"{name} = {json.dumps(getattr(spread, name))}"
                for name in ("figure", "family", "measured", "engine", "precision")
            ),
            f"low = {spread.low:.4f}",
            f"high = {spread.high:.4f}",
            f"rows = {spread.rows}",
        ]
    return "\n".join(lines) + "\n"
