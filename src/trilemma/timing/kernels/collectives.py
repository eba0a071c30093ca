"""Collectives inside one link domain as measured: a floor and a bandwidth that grows with the message, by group size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.kernels.fitted import KernelCoefficients, Parameter
from trilemma.timing.kernels.shapes import MEGA, MICRO

#: Group sizes with numbers of their own; between them they are interpolated over the logarithm of the size.
RANKS = (2, 4, 8)
_EACH = (
    Parameter(name="floor_us", start=8.0, low=0.3, high=500.0, meaning="microseconds of the smallest message"),
    Parameter(name="link_share", start=0.8, low=0.001, high=3.0, meaning="share of one-way link bandwidth, large messages"),
    Parameter(name="ramp_mb", start=1.0, low=0.0, high=500.0, meaning="message whose bandwidth is half the final one"),
    Parameter(name="ramp_power", start=0.5, low=0.0, high=1.0, meaning="how fast bandwidth grows with the message"),
)  # fmt: skip
#: Volumes that cross a rank's link for a message of one volume, as (factor of (n − 1)/n).
_VOLUMES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def parameters_for(ranks: int) -> tuple[Parameter, ...]:
    """The parameters of one group size; their names end in it (``floor_us_8``)."""
    return tuple(replace(p, name=f"{p.name}_{ranks}", required=ranks == RANKS[0]) for p in _EACH)


PARAMETERS = tuple(parameter for ranks in RANKS for parameter in parameters_for(ranks))


def collective_s(c: KernelCoefficients, n_bytes: Numbers, ranks: Numbers) -> Any:
    """Seconds of ``c.kernel`` (all_reduce, all_gather, reduce_scatter, all_to_all) over ``ranks`` of one link domain.

    ``n_bytes`` is the whole message: what each rank holds before a reduction, and after a gather. Each link carries
    ``2(n − 1)/n`` of it in an all-reduce and ``(n − 1)/n`` otherwise (nccl-tests, doc/PERFORMANCE.md, bus bandwidth).
    ``t = floor + x / bandwidth · (1 + (ramp/x)^power)``. One rank costs nothing; a card that is joined
    to no other has no finite time for more.

    Numbers or arrays that broadcast. Source of the rates: the tables that ``data/coefficients/kernels`` was fitted to.
    """
    n_bytes, ranks = np.asarray(n_bytes, dtype=float), np.asarray(ranks, dtype=float)
    at = np.log2(np.clip(ranks, RANKS[0], None))
    floor_us, share, ramp_mb, power = (
        _between(c, name, at) for name in ("floor_us", "link_share", "ramp_mb", "ramp_power")
    )
    carried = np.maximum(_VOLUMES[c.kernel] * (ranks - 1) / ranks * n_bytes, 1.0)
    ramp = 1 + (ramp_mb * MEGA / carried) ** power
    carrying_s = carried / (share * c.link_bytes_per_s) * ramp if c.link_bytes_per_s > 0 else np.inf
    return np.where(ranks > 1, floor_us * MICRO + carrying_s, 0.0)


def _between(c: KernelCoefficients, name: str, at: Any) -> Any:
    known = [ranks for ranks in RANKS if f"{name}_{ranks}" in c.values]
    return np.interp(at, np.log2(known), [c[f"{name}_{ranks}"] for ranks in known])
