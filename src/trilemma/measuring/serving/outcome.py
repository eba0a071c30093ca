"""What a server did under load, as figures; and as the files that other commands read."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trilemma.columns import column
from trilemma.measuring.energy.window import EnergyWindow
from trilemma.measuring.serving.load import LoadRun
from trilemma.measuring.serving.stream import Answered

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFigure:
    """One latency in milliseconds over the requests that were answered."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCount:
    why: str
    requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedLoad:
    """A run: requests sent, answered and failed by why; rates over its time; lengths as the server counts them.

    ``goodput_per_s`` counts requests within both targets, where any was stated. ``ended_early`` says why the run was stopped.
    ``energy`` is what the cards drew from the first request to the last answer, where that was asked for.
    ``rate`` is what was asked for in an open loop, ``concurrency`` in a closed one; ``in_flight`` the mean of requests under way.
    """

    schema: str = "trilemma/load@1"
    model: str
    requests: int
    completed: int
    failed: int
    failures: tuple[FailureCount, ...] = ()
    ended_early: str = ""
    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float | None = None
    isl: float | None = None
    osl: float | None = None
    osl_asked: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    in_flight: float | None = None
    ttft_ms: LoadFigure | None = None
    tpot_ms: LoadFigure | None = None
    itl_ms: LoadFigure | None = None
    e2e_ms: LoadFigure | None = None
    energy: EnergyWindow | None = None
    j_per_output_token: float | None = None
    made_by: Any = field(default=None, metadata=column(exact=True))

    @property
    def whole(self) -> bool:
        return not self.failed and not self.ended_early


def served_load(
    run: LoadRun,
    *,
    concurrency: int | None,
    rate: float | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
    energy: Callable[[float, float], EnergyWindow] | None = None,
) -> ServedLoad:
    """The figures of a run; latencies of the requests that came whole. ``energy`` tells what was drawn between two times."""
    from trilemma.data.digest import made_by

    whole = [one for one in run.answered if not one.failure]
    ended = max((one.end_s for one in run.answered), default=run.ended_s)
    seconds = max(ended - run.started_s, 1e-9)
    counted = Counter(one.failure for one in run.answered if one.failure)
    good = None
    if ttft_ms is not None or tpot_ms is not None:
        good = sum(_within(one, ttft_ms, tpot_ms) for one in whole) / seconds
    drawn = None if energy is None else energy(run.started_s, ended)
    tokens = sum(one.tokens for one in whole)
    stays = [one.pieces_s[-1] - one.sent_s for one in whole]
    return ServedLoad(
        made_by=made_by(), model=run.model, requests=len(run.answered), completed=len(whole), failed=sum(counted.values()),
        failures=tuple(FailureCount(why=why, requests=number) for why, number in sorted(counted.items())),
        ended_early=run.ended_early, seconds=seconds, requests_per_s=len(whole) / seconds,
        output_tokens_per_s=tokens / seconds, goodput_per_s=good,
        isl=_mean([one.input_tokens or one.asked_input for one in whole]), osl=_mean([one.tokens for one in whole]),
        osl_asked=_mean([one.asked_output for one in whole]),
        concurrency=concurrency, rate=rate, in_flight=sum(stays) / seconds if stays else None,
        ttft_ms=_figure([one.ttft_s for one in whole]),
        tpot_ms=_figure([tpot for one in whole if (tpot := one.tpot_s) is not None]),
        itl_ms=_figure([gap for one in whole for gap in np.diff(one.pieces_s).tolist()]), e2e_ms=_figure(stays),
        energy=drawn, j_per_output_token=_each(drawn, tokens),
    )  # fmt: skip


def _each(drawn: EnergyWindow | None, tokens: int) -> float | None:
    """Joules an output token, where there are both."""
    return drawn.joules / tokens if drawn is not None and drawn.joules and tokens else None


def _within(one: Answered, ttft_ms: float | None, tpot_ms: float | None) -> bool:
    tpot = one.tpot_s
    return (ttft_ms is None or 1e3 * one.ttft_s <= ttft_ms) and (
        tpot_ms is None or tpot is None or 1e3 * tpot <= tpot_ms
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _figure(seconds: Sequence[float]) -> LoadFigure | None:
    if not seconds:
        return None
    array = 1e3 * np.asarray(seconds)
    return LoadFigure(
        mean=float(array.mean()), **{name: float(np.quantile(array, at)) for name, at in _QUANTILES.items()}
    )


def bench_document(found: ServedLoad) -> dict[str, Any]:
    """As ``vllm bench serve --save-result`` writes it: what ``calibrate serving`` and ``settle`` read."""
    told: dict[str, Any] = {
        "model_id": found.model, "num_prompts": found.requests, "completed": found.completed, "duration": found.seconds,
        "total_input_tokens": round((found.isl or 0) * found.completed),
        "total_output_tokens": round((found.osl or 0) * found.completed), "request_throughput": found.requests_per_s,
        "output_throughput": found.output_tokens_per_s, "request_rate": found.rate if found.rate is not None else "inf",
        "max_concurrency": found.concurrency,
    }  # fmt: skip
    for name in ("ttft", "tpot", "itl", "e2e"):
        figure: LoadFigure | None = getattr(found, f"{name}_ms")
        if figure is not None:
            told |= {f"mean_{name}_ms": figure.mean, f"median_{name}_ms": figure.p50, f"p99_{name}_ms": figure.p99}
    return told


#: Columns of a table of serving speed (docs/accuracy.md).
_COLUMNS = (
    "id", "source_ref", "model", "precision_weights", "precision_activations", "precision_kv", "gpu", "gpus", "tp", "pp", "ep",
    "dp", "engine", "version", "isl", "osl", "concurrency_or_batch", "metric", "value", "notes", "tier",
)  # fmt: skip


def table_text(found: ServedLoad, stated: dict[str, str]) -> str:
    """Rows of a table that ``validate`` judges; ``stated`` fills the columns that no server tells (gpu, engine, …)."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _COLUMNS, restval="")
    writer.writeheader()
    load = f"rate={found.rate:g}" if found.rate is not None else str(found.concurrency or "")
    figures = {"output_tok_s_total": found.output_tokens_per_s}
    figures |= {name: one.mean for name in ("ttft_ms", "tpot_ms") if (one := getattr(found, name)) is not None}
    for metric, value in figures.items():
        row = {
            "id": f"measured-{load}-{metric}", "source_ref": "trilemma measure serve", "model": found.model, "metric": metric,
            "isl": f"{found.isl or 0:.0f}", "osl": f"{found.osl or 0:.0f}", "concurrency_or_batch": load, "value": f"{value:.6g}",
            "tier": "A",
        }  # fmt: skip
        writer.writerow(row | {key: value for key, value in stated.items() if key in _COLUMNS})
    return file.getvalue()


def log_text(run: LoadRun) -> str:
    """One line a request, as ``simulate serving --trace`` reads it, with what came of each."""
    lines = []
    for at, one in enumerate(sorted(run.answered, key=lambda one: one.sent_s)):
        row: dict[str, Any] = {
            "request": at, "arrival_s": round(one.sent_s - run.started_s, 6), "input": one.input_tokens or one.asked_input,
            "output": max(one.tokens, 1) if not one.failure else one.asked_output,
        }  # fmt: skip
        if one.failure:
            row["failure"] = one.failure
        else:
            row |= {
                "first_token_s": round(one.pieces_s[0] - run.started_s, 6),
                "finish_s": round(one.pieces_s[-1] - run.started_s, 6),
            }
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"
