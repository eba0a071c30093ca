"""Speed by the terms of a profile that was fitted on the user's own machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trilemma.timing.serving_terms import ServingTerms


def terms_of(name: str | None) -> ServingTerms | None:
    """The terms that ship with those of the profile called ``name`` put in; None where none is named."""
    if name is None:
        return None
    from trilemma.measured.serving.deployment.profile import load
    from trilemma.timing import serving_terms

    return load(name).applied(serving_terms.shipped())
