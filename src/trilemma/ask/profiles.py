"""Speed by the terms of a profile that was fitted on the user's own machines."""

from __future__ import annotations

import contextlib


def using(name: str | None) -> contextlib.AbstractContextManager[None]:
    """Answers inside come with the terms of the profile called ``name``, where one is named."""
    if name is None:
        return contextlib.nullcontext()
    from trilemma.measured.serving.deployment.profile import load
    from trilemma.timing import serving_terms

    return serving_terms.using(load(name).applied(serving_terms.shipped()))
