"""A table of plans: layouts and batch sizes broadcast to one shape, answers given back as numbers or arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.plans import Layout
from trilemma.quantities import Numbers

#: Bytes of the pool of a plan in a table that the engine does not run: far too few for anything.
NOT_RUN = -1e15


@dataclass(frozen=True, kw_only=True, slots=True)
class BroadcastPlans:
    """Layouts and batch sizes broadcast to one shape; ``table`` says whether the caller gave arrays."""

    tp: Any
    pp: Any
    dp: Any
    ep: Any
    dcp: Any
    seqs: Any
    tokens: Any
    shape: tuple[int, ...]
    table: bool

    @classmethod
    def of(cls, layout: Layout, *, max_seqs: Numbers, max_batched_tokens: Numbers) -> BroadcastPlans:
        given = (layout.tp, layout.pp, layout.dp, layout.ep, layout.dcp, max_seqs, max_batched_tokens)
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value)) for value in given))
        tp, pp, dp, ep, dcp, seqs, tokens = arrays
        table = any(isinstance(value, np.ndarray) and value.ndim for value in given)
        return cls(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, seqs=seqs, tokens=tokens, shape=tp.shape, table=table)

    @property
    def stages(self) -> tuple[str, ...]:
        if np.all(self.pp == 1):
            return ("first",)
        return ("first", "last") if np.all(self.pp < 3) else ("first", "middle", "last")

    def refused(self, broken: Any, message: str) -> Any:
        """``broken`` in the shape of the plans: layouts that the engine does not run. Raises `InputError` for a single one."""
        found = np.broadcast_to(np.asarray(broken, dtype=bool), self.shape)
        if not self.table and np.any(found):
            raise InputError(message)
        return found

    def out(self, value: Any) -> Any:
        """``value`` as an array for a table, as a plain number for a single plan."""
        if self.table:
            return np.asarray(value)
        number = np.asarray(value).reshape(-1)[0]
        return int(number) if float(number).is_integer() and abs(float(number)) < 2**62 else float(number)
