"""Cells of the tables that set planners side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planners import Answer

#: Columns of `our_plans` and `their_plans`.
PLAN_HEAD = ["plan", "in flight", "TTFT ms", "TPOT ms", "tok/s/GPU"]


def our_plans(plans: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [one["inputs"]["plan"]["summary"], str(one["inputs"]["workload"]["concurrency"]), *speed_cells(one["speed"])]
        for one in plans
    ]


def their_plans(answer: Answer, gpus: int) -> list[list[str]]:
    """Their plan is one engine; as many as the cards hold run side by side."""
    found = []
    for row in answer.document["plans"]:
        replicas = gpus // int(row["num_total_gpus"])
        degrees = (("TP", row["tp"]), ("DP", row["dp"]), ("PP", row["pp"]), ("EP", row["moe_ep"] or "1"))
        layout = [f"{name}{degree}" for name, degree in degrees if degree != "1"] or ["TP1"]
        name = (f"{replicas} × " if replicas > 1 else "") + " ".join(layout)
        figures = [f"{float(row[key]):,.1f}" for key in ("ttft", "tpot", "tokens/s/gpu")]
        found.append([name, str(replicas * int(float(row["concurrency"]))), *figures])
    return found


def speed_cells(document: Mapping[str, Any] | None) -> list[str]:
    """TTFT, TPOT and tokens per second and GPU with their 90 % ranges."""
    if document is None:
        return ["–"] * 3
    figures = (document["ttft_ms"], document["tpot_ms"], document["tokens_per_s_per_gpu"])
    return [f"{figure(one['value'])} ({figure(one['low'])} – {figure(one['high'])})" for one in figures]


def their_speed_cells(answer: Answer) -> list[str]:
    if answer.error:
        return [f"“{shortened(answer.error)}”", "–", "–"]
    return [figure(answer.document[name]) for name in ("ttft_ms", "tpot_ms", "per_gpu")]


def latencies(document: Mapping[str, Any]) -> str:
    return f"{figure(document['ttft_ms']['value'])} / {figure(document['tpot_ms']['value'])}"


def their_latencies(answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        return f"“{shortened(answer['error'])}”"
    return f"{figure(answer['ttft_ms'])} / {figure(answer['tpot_ms'])}"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def shortened(words: str) -> str:
    """The first words of an error, without the paths of the machine that it ran on."""
    words = re.sub(r"\S*/site-packages/", "", re.sub(r"^\w+Error: (perf database error: )?", "", words))
    return words if len(words) <= 110 else words[:110].rpartition(" ")[0] + " …"


def wall(answer: Answer) -> str:
    """Seconds of the clock and, behind them, of the CPU."""
    return f"{answer.seconds:.1f} ({answer.cpu_seconds:.1f})"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (headers, ["---"] * len(headers), *rows)]
    return "\n".join(lines)
