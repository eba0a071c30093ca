"""Latency targets of a search that nobody stated: which are assumed, and which of them stay open where no plan holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trilemma.errors import InputError
from trilemma.timing.coefficients import spec_sheet
from trilemma.workloads import Serving


def targets_tried(workload: Serving, *, assume: bool = True) -> Iterator[tuple[Serving, tuple[str, ...]]]:
    """``workload`` with the targets to search under and what was assumed: the first, or where no plan holds them the next.

    Without a load a search goes as far as its targets let it, so one that is not stated is assumed: without a limit to the
    first token plans win whose readers wait a quarter of a minute for it. A target that nobody asked for and that no plan
    holds is given up, and told. Raises `InputError` where the lengths are missing.
    """
    if workload.isl is None or workload.osl is None:
        raise InputError(
            "a search needs the lengths of prompt and output; give `serve` ISL/OSL, such as `serve` 4096/1024"
        )
    missing = [name for name in ("tpot", "ttft") if getattr(workload, f"{name}_ms") is None]
    loaded = workload.concurrency is not None or workload.rate is not None
    if not assume or loaded or not missing:
        yield workload, ()
        return
    facts = spec_sheet()["assumed_target"]
    asked = "no load or latency asked for" if len(missing) == 2 else "no load asked for"
    told = [f"--{name} {facts[f'{name}_ms']} ms ({facts['words'][name]})" for name in missing]
    limits = {name: float(facts[f"{name}_ms"]) for name in missing}
    yield _within(workload, limits), (f"{asked}: {' and '.join(told)} assumed",)
    kept = missing[:-1]
    if kept:
        words = f"{asked}: {told[0]} assumed; left open: {told[1]}, which no plan holds beside it"
    else:
        words = f"left open: {told[0]}, which no plan holds beside the target given"
    yield _within(workload, {name: limits[name] for name in kept}), (words,)


def _within(workload: Serving, limits_ms: Mapping[str, float]) -> Serving:
    return replace(
        workload,
        ttft_ms=limits_ms.get("ttft", workload.ttft_ms),
        tpot_ms=limits_ms.get("tpot", workload.tpot_ms),
    )
