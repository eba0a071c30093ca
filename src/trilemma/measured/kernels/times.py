"""Seconds of the kernels of a step: by fitted formulas, or by measured tables where a package has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.kernels.models import model_of
from trilemma.measured.kernels.silicon import require_tables, silicon_kernel
from trilemma.measured.kernels.tables import KernelRows
from trilemma.timing.kernels.ladder import kernel_coefficients
from trilemma.timing.step_kernels import KernelCall


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime:
    """``seconds`` of one launch and who says so; the factors ``low`` and ``high`` bound nine of ten cases of the formula.

    ``fallback`` says why a measured table does not answer where one was asked for.
    """

    call: KernelCall
    seconds: float
    low: float
    high: float
    source: str
    fallback: str = ""

    @property
    def step_s(self) -> float:
        return self.call.count * self.seconds


def kernel_times(
    calls: Sequence[KernelCall], accelerator: Accelerator, engine: str, *, measured: bool = False
) -> tuple[KernelTime, ...]:
    """Seconds of ``calls`` in ``engine`` on ``accelerator``; ``measured`` asks the tables of the extra ``silicon`` first.

    Products are timed as tables time them, quantisation of activations included. An operator without a table falls back to
    the formula and says so. Raises `InputError` where ``measured`` is asked for without the package.
    """
    if measured:
        require_tables()
    return tuple(_time(call, accelerator, engine, measured) for call in calls)


def _time(call: KernelCall, accelerator: Accelerator, engine: str, measured: bool) -> KernelTime:
    c, rung = kernel_coefficients(
        accelerator, engine, call.kernel, call.dtype, head_dim=call.head_dim, windowed=call.windowed
    )
    one = np.ones(1)
    rows = KernelRows(
        kernel=call.kernel, accelerator=accelerator.id, engine=c.engine, version="", dtype=call.dtype,
        shapes={name: value * one for name, value in call.shapes.items()}, seconds=one, sources=np.array([""]),
        at=np.zeros(1, dtype=int),
    )  # fmt: skip
    source, fallback = str(rung), ""
    seconds = np.asarray(model_of(call.kernel).seconds(c, rows), dtype=float)
    if measured:
        table, why = silicon_kernel(accelerator, engine, call.kernel, call.dtype, head_dim=call.head_dim)
        if table is None:
            fallback = str(why)
        else:
            seconds, source = table.seconds(rows), f"table: {table.source}"
    return KernelTime(
        call=call, seconds=float(seconds[0]), low=rung.low, high=rung.high, source=source, fallback=fallback
    )
