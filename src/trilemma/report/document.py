"""The JSON form of an estimate: ``trilemma/estimate@1``, and of a search: ``trilemma/plans@1``.

A key that does not apply is absent, never zero. All figures are per GPU of the worst rank unless the key says otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from trilemma.columns import column, document_of, rounded
from trilemma.estimate.estimate import Estimate

if TYPE_CHECKING:
    from trilemma.search.result import SearchResult
    from trilemma.search.training import TrainingSearch


def estimate_document(estimate: Estimate, *, explain: bool = False) -> dict[str, Any]:
    """One estimate as plain data, keys in the order of its columns; ``explain`` adds inputs and source of each line."""
    return document_of(estimate, explain=explain)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """How many plans lost, and by what."""

    why: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlansDocument:
    """``trilemma/plans@1``: ``pareto`` are indices into ``plans``, ``rejected`` counts plans by why they lost.

    Where the number of GPUs was searched, ``least_gpus`` carry the load (the first plan), and ``cheapest`` names the plan
    that makes the most tokens for each GPU. ``assumed`` lists what was filled in,
    ``blocked`` which targets no plan holds. ``nearest`` stands for a search without any plan.
    """

    schema: Literal["trilemma/plans@1"] = "trilemma/plans@1"
    plans: tuple[Estimate, ...] = field(metadata=column(keep="empty"))
    pareto: tuple[int, ...] = field(metadata=column(keep="empty"))
    searched: int
    legal: int
    fitting: int
    seconds: float = field(metadata=column(exact=True))
    rejected: tuple[Rejected, ...] = field(metadata=column(keep="empty"))
    assumed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    least_gpus: Mapping[str, Any] | None = field(default=None, metadata=column(exact=True))
    cheapest: Mapping[str, Any] | None = field(default=None, metadata=column(exact=True))
    nearest: Estimate | None = None

    @classmethod
    def of(cls, search: SearchResult | TrainingSearch, estimates: Iterable[Estimate], **more: Any) -> Self:
        """What every search says."""
        return cls(
            plans=tuple(estimates),
            pareto=tuple(int(index) for index in search.pareto),
            searched=int(search.searched),
            legal=int(search.legal),
            fitting=int(search.fitting),
            seconds=round(search.seconds, 4),
            rejected=tuple(Rejected(why=why, count=int(count)) for why, count in search.rejected.items()),
            **more,
        )


def serving_plans_document(result: SearchResult, *, nearest: Estimate | None, explain: bool = False) -> dict[str, Any]:
    """A search of serving plans; ``nearest`` stands for a search without any, where it does not fit."""
    from trilemma.report.plans import assumed_words

    estimates, at = [found.estimate for found in result.plans], result.cheapest
    document = PlansDocument.of(
        result,
        estimates,
        assumed=tuple(assumed_words(result)),
        blocked=result.blocked,
        least_gpus=None if result.least_gpus is None else {"gpus": result.least_gpus, "plan": 0},
        cheapest=None if at is None else {"plan": at, **_dollars(estimates[at])},
        nearest=nearest if nearest is not None and not nearest.fits else None,
    )
    return document_of(document, explain=explain)


def _dollars(estimate: Estimate) -> dict[str, float]:
    token = estimate.usd_per_million_tokens
    return {} if token is None else {"usd_per_million_tokens": rounded(token.value)}


def dumps(document: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """``document`` as strict JSON text (no NaN, no Infinity), numpy numbers as plain ones; without ``indent`` on one line."""
    return json.dumps(plain(document), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """``value`` as JSON has it: numpy numbers as plain ones, tuples as lists, what is not finite as text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    return value
