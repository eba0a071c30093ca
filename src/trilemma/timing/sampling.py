"""Seconds of choosing tokens beyond taking the largest logit, by what requests ask of the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.timing.eras import is_before
from trilemma.workloads import SAMPLING

_GREEDY, _, _PENALIZED = SAMPLING


def sampled_logit_s(kind: str, *, engine: str, version: str | None, bytes_per_s: float) -> float:
    """Seconds that the sampler of an engine takes for each logit of a row, at what its passes stream at.

    Numbers; 0 for greedy rows. Source: ``data/coefficients/sampling.toml``.
    """
    if kind == _GREEDY:
        return 0.0
    rows = (row for row in _data()["filter"] if row["engine"] in (engine, ""))
    found = next(row for row in rows if "before" not in row or is_before(version, row["before"], engine))
    return float(found["logit_s"]) + float(_data()["bytes_a_logit"][kind]) / bytes_per_s


def waits_for_tokens(kind: str, *, engine: str) -> bool:
    """Whether the host of ``engine`` has to see each token before it chooses the next, so that it works ahead of nothing.
    Source: table ``waits`` of ``data/coefficients/sampling.toml``."""
    return kind == _PENALIZED and any(row["engine"] == engine for row in _data()["waits"])


@cache
def _data() -> Mapping[str, Any]:
    return read_data("coefficients/sampling.toml")
