"""Speed by the terms of a profile that was fitted on the user's own machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.architecture import Model
    from trilemma.plans import Plan
    from trilemma.timing.serving_terms import ServingTerms


def terms_of(name: str | None) -> ServingTerms | None:
    """The terms that ship with those of the profile called ``name`` put in; None where none is named."""
    if name is None:
        return None
    from trilemma.measured.serving.deployment.profile import load
    from trilemma.timing import serving_terms

    return load(name).applied(serving_terms.shipped())


def anchored_by(files: str, terms: ServingTerms | None, *, model: Model, cluster: Cluster, plan: Plan) -> ServingTerms:
    """``terms`` (those that ship where None) with the measured points of ``files``, names with commas between."""
    from trilemma.errors import InputError, shorten
    from trilemma.measured.serving.deployment.anchors import anchored_terms
    from trilemma.measured.serving.deployment.bench_files import read_points
    from trilemma.timing import serving_terms

    if len(plan.pools) > 1:
        raise InputError("`runs` anchor one engine; prefill and decode in pools of their own have none")
    names = [name.strip() for name in files.split(",") if name.strip()]
    if not names:
        raise InputError(f"`runs` {shorten(files)!r} names no file; give one that a benchmark wrote")
    points = read_points(names)
    return anchored_terms(points, model=model, cluster=cluster, plan=plan, terms=terms or serving_terms.shipped())
