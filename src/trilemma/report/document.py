"""The JSON form of an estimate: ``trilemma/estimate@1``, and of a search: ``trilemma/plans@1``.

A key that does not apply is absent, never zero. All figures are per GPU of the worst rank unless the key says otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trilemma.columns import document_of, rounded
from trilemma.estimate.estimate import Estimate

if TYPE_CHECKING:
    from trilemma.search.result import SearchResult

ESTIMATE_SCHEMA = "trilemma/estimate@1"
PLANS_SCHEMA = "trilemma/plans@1"


def estimate_document(estimate: Estimate, *, explain: bool = False) -> dict[str, Any]:
    """One estimate as plain data, keys in the order of the contract; ``explain`` adds inputs and source of each line."""
    return _without_absent(
        {
            "schema": ESTIMATE_SCHEMA,
            "inputs": estimate.inputs,
            "made_by": made_by(),
            "fits": estimate.fits,
            "verdict": {"stage": estimate.verdict.stage, "probability": rounded(estimate.verdict.probability)},
            "reason": estimate.verdict.reason,
            "memory": document_of(estimate.memory, explain=explain),
            "kv_cache": document_of(estimate.cache) if estimate.cache else None,
            "speed": document_of(estimate.speed) if estimate.speed else None,
            "bottleneck": document_of(estimate.bottleneck) if estimate.bottleneck else None,
            "cost": _cost(estimate),
            "power": _without_absent({"watts": estimate.watts, "joules_per_token": estimate.joules_per_token}) or None,
            "ranks": list(estimate.ranks) or None,
            "remedies": [document_of(one) for one in estimate.remedies] or None,
            "warnings": [document_of(one) for one in estimate.warnings],
            **estimate.extras,
        }
    )


def plans_document(
    estimates: Sequence[Estimate],
    *,
    pareto: Iterable[int],
    searched: int,
    legal: int,
    fitting: int,
    seconds: float,
    rejected: Mapping[str, int],
    least_gpus: int | None = None,
    cheapest: int | None = None,
    explain: bool = False,
) -> dict[str, Any]:
    """A search as plain data; ``pareto`` are indices into ``plans``, ``rejected`` counts plans by why they lost.

    Where the number of GPUs was searched, ``least_gpus`` carry the load (the first plan), and plan ``cheapest`` makes the
    most tokens for each GPU.
    """
    document = {
        "schema": PLANS_SCHEMA,
        "plans": [estimate_document(estimate, explain=explain) for estimate in estimates],
        "pareto": [int(index) for index in pareto],
        "searched": int(searched),
        "legal": int(legal),
        "fitting": int(fitting),
        "seconds": round(seconds, 4),
        "rejected": [{"why": why, "count": int(count)} for why, count in rejected.items()],
    }
    if least_gpus is not None:
        document["least_gpus"] = {"gpus": least_gpus, "plan": 0}
    if cheapest is not None:
        document["cheapest"] = {"plan": cheapest, **_dollars(estimates[cheapest])}
    return document


def serving_plans_document(result: SearchResult, *, nearest: Estimate | None, explain: bool = False) -> dict[str, Any]:
    """A search of serving plans; ``nearest`` stands for a search without any, where it does not fit."""
    document = plans_document(
        [found.estimate for found in result.plans],
        least_gpus=result.least_gpus,
        cheapest=result.cheapest,
        pareto=result.pareto,
        searched=result.searched,
        legal=result.legal,
        fitting=result.fitting,
        seconds=result.seconds,
        rejected=result.rejected,
        explain=explain,
    )
    if nearest is not None and not nearest.fits:
        document["nearest"] = estimate_document(nearest, explain=explain)
    return document


def _dollars(estimate: Estimate) -> dict[str, float]:
    token = estimate.usd_per_million_tokens
    return {} if token is None else {"usd_per_million_tokens": rounded(token.value)}


def made_by() -> dict[str, str]:
    """Which version of the code and which facts made a document."""
    from trilemma import __version__
    from trilemma.data.digest import data_digest

    return {"version": __version__, "data_digest": data_digest()}


def dumps(document: Mapping[str, Any]) -> str:
    """``document`` as strict JSON text (no NaN, no Infinity), numpy numbers as plain ones."""
    return json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)


def _cost(estimate: Estimate) -> dict[str, Any] | None:
    if estimate.usd_per_hour is None:
        return None
    cost = {
        "usd_per_hour": rounded(estimate.usd_per_hour.value),
        "usd_per_hour_low": rounded(estimate.usd_per_hour.low),
        "usd_per_hour_high": rounded(estimate.usd_per_hour.high),
    }
    if estimate.usd_per_million_tokens is not None:
        cost |= {
            "usd_per_million_tokens": rounded(estimate.usd_per_million_tokens.value),
            "usd_per_million_tokens_low": rounded(estimate.usd_per_million_tokens.low),
            "usd_per_million_tokens_high": rounded(estimate.usd_per_million_tokens.high),
        }
    return cost


def _without_absent(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}


def plain(value: Any) -> Any:
    """``value`` as JSON has it: numpy numbers as plain ones, tuples as lists, what is not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
