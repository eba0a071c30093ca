"""The kernels of one decode step for people and as JSON, beside the lines of the estimate's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.measured.kernels.times import KernelTime
from trilemma.report.operators import NAMES
from trilemma.report.tables import render_table

SCHEMA = "trilemma/kernels@1"


def render_kernels(times: Sequence[KernelTime], step: Mapping[str, float], *, width: int | None = None) -> str:
    """A row a kernel, then what each line of a step comes to beside ``step``, the estimate's seconds by line."""
    sources = list(dict.fromkeys(time.source for time in times))
    rows = [
        (
            time.call.what, f"{time.call.kernel} {time.call.dtype}", str(time.call.count), f"{time.seconds * 1e6:,.1f}",
            f"{time.seconds * time.low * 1e6:,.1f} – {time.seconds * time.high * 1e6:,.1f}", f"{time.step_s * 1e3:,.3f}",
            f"[{sources.index(time.source) + 1}]",
        )
        for time in times
    ]  # fmt: skip
    headers = ("what", "kernel", "times", "µs each", "90 % µs", "ms a step", "from")
    parts = [render_table(headers, rows, align="llrrrrl", width=width)]
    parts.append("\n".join(f"[{number}] {source}" for number, source in enumerate(sources, 1)))
    fallbacks = dict.fromkeys(time.fallback for time in times if time.fallback)
    parts += [f"from the formula: {fallback}" for fallback in fallbacks]
    sums = by_line(times)
    lines = [
        (NAMES.get(name, name.replace("_", " ")), _summed(name, sums), f"{seconds * 1e3:,.3f}")
        for name, seconds in step.items()
        if seconds > 0
    ]
    parts.append(render_table(("line of a step", "kernels, ms", "estimate, ms"), lines, align="lrr", width=width))
    return "\n\n".join(parts)


def _summed(line: str, sums: Mapping[str, float]) -> str:
    if line == "kernels":
        return "in each kernel"
    return f"{sums[line] * 1e3:,.3f}" if line in sums else "–"


def by_line(times: Sequence[KernelTime]) -> dict[str, float]:
    """Seconds of a step by line."""
    sums: dict[str, float] = {}
    for time in times:
        sums[time.call.line] = sums.get(time.call.line, 0.0) + time.step_s
    return sums


def kernels_document(times: Sequence[KernelTime], step: Mapping[str, float]) -> dict[str, Any]:
    """The same as plain data, seconds throughout."""
    return {
        "schema": SCHEMA,
        "kernels": [
            {
                "line": time.call.line, "what": time.call.what, "kernel": time.call.kernel, "dtype": time.call.dtype,
                "count": time.call.count, "shapes": dict(time.call.shapes), "seconds": time.seconds,
                "low": time.seconds * time.low, "high": time.seconds * time.high, "source": time.source,
                **({"fallback": time.fallback} if time.fallback else {}),
            }
            for time in times
        ],
        "lines": [
            {"line": name, "kernels_s": kernels_s, "estimate_s": step.get(name, 0.0)}
            for name, kernels_s in by_line(times).items()
        ],
    }  # fmt: skip
