"""How many of the requests in flight run at once, and what the others wait for: the engine's admission to its cache.

Engines differ in what they promise. One that *reserves* admits a request when its whole output fits (TensorRT-LLM's
GUARANTEED_NO_EVICT, slots of llama.cpp). One that lets requests *grow* admits it when the prompt fits, and throws the youngest
out where the cache runs full (vLLM, SGLang): then as many run as fit half way through their outputs, give or take, since
requests begun together are long together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.intervals import normal_cdf
from trilemma.quantities import Numbers
from trilemma.timing.coefficients import spec_sheet

#: More requests than anyone has.
_MANY = 1e12
_COLUMNS = ("half_way", "at_full_length", "most")


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """What one attention replica admits of a load; numbers, or arrays with one entry per plan.

    ``half_way`` requests fit with half of their outputs made, ``at_full_length`` with all of them; ``most`` is the engine's
    limit of sequences. ``reserves`` says which of both its scheduler counts.
    """

    half_way: Numbers = np.inf
    at_full_length: Numbers = np.inf
    most: Numbers = np.inf
    reserves: bool = False

    @classmethod
    def of(cls, slots: Numbers) -> Admission:
        """A fixed number of slots."""
        return cls(half_way=slots, at_full_length=slots, most=slots, reserves=True)

    @property
    def holds(self) -> Any:
        """Requests that run in the mean where more are there, at least one."""
        counted = self.at_full_length if self.reserves else self.half_way
        return np.maximum(np.minimum(np.floor(np.asarray(counted, dtype=float)), self.most), 1.0)

    @property
    def never_waits(self) -> Any:
        """Requests that run together whatever their phases: none is thrown out."""
        full = np.floor(np.asarray(self.at_full_length, dtype=float))
        return np.maximum(np.minimum(full, self.most), 1.0)

    def mean_running(self, offered: Numbers) -> Any:
        """`running` in the mean, where phases are as correlated as they are in most runs."""
        return self.running(offered, correlation=float(spec_sheet()["admission"]["phase_correlation"]))

    def running_range(self, offered: Numbers) -> tuple[Any, Any, Any]:
        """(least, mean, most) of `running` as the phases of the requests fall, between 1 and ``offered``."""
        if self.reserves:
            same = self.running(offered, correlation=0.0)
            return same, same, same
        known = spec_sheet()["admission"]
        names = ("phase_correlation_most", "phase_correlation", "phase_correlation_least")
        least, mean, most = (self.running(offered, correlation=float(known[name])) for name in names)
        return least, mean, most

    def running(self, offered: Numbers, *, correlation: float) -> Any:
        """Mean number of running requests where ``offered`` are in flight (numbers or arrays), between 1 and ``offered``.

        In phases of their own, ``n`` growing requests take ``n`` times the mean need, give or take ``need · spread · sqrt(n)``;
        with phases correlated by ``correlation`` (0 to 1) ``sqrt(n (1 + (n − 1) correlation))``. So the number that fits is
        about normal, and ``E[min(offered, fits)]`` run (the first moment of a censored normal).
        """
        offered = np.asarray(offered, dtype=float)
        asked = np.minimum(offered, self.most)
        if self.reserves:
            return np.maximum(np.minimum(asked, np.floor(np.asarray(self.at_full_length, dtype=float))), 1.0)
        half_way = np.clip(np.asarray(self.half_way, dtype=float), 1.0, _MANY)
        full = np.minimum(np.asarray(self.at_full_length, dtype=float), half_way)
        # a need uniform between that of the prompt and that of full length, as a share of the mean
        spread = (half_way / np.maximum(full, 1e-9) - 1) / np.sqrt(3.0)
        deviation = np.maximum(spread * np.sqrt(half_way * (1 + (half_way - 1) * correlation)), 1e-9)
        above = (asked - half_way) / deviation
        density = np.exp(-above * above / 2) / np.sqrt(2 * np.pi)
        waiting = (asked - half_way) * normal_cdf(above) + deviation * density
        least = np.minimum(asked, np.floor(full))
        return np.maximum(np.clip(asked - waiting, least, asked), 1.0)

    @classmethod
    def joined(cls, rows: Sequence[Admission]) -> Admission:
        """One table of the rows of one engine."""
        columns: dict[str, Any] = {
            name: np.array([float(np.asarray(getattr(one, name))) for one in rows]) for name in _COLUMNS
        }
        return replace(rows[0], **columns)

    def take(self, chosen: Any) -> Admission:
        """The rows of a table that a mask or index array names."""
        columns: dict[str, Any] = {name: np.asarray(getattr(self, name))[chosen] for name in _COLUMNS}
        return replace(self, **columns)

    def broadcast_to(self, shape: tuple[int, ...]) -> Admission:
        """The same for a table of plans of ``shape``."""
        columns: dict[str, Any] = {name: np.broadcast_to(getattr(self, name), shape) for name in _COLUMNS}
        return replace(self, **columns)


#: A cache that holds whatever comes.
UNBOUNDED = Admission()
