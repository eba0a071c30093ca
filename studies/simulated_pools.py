"""Public runs of prefill and decode in pools, simulated as they were run: users who send the next prompt when one is answered.

``python studies/simulated_pools.py TABLE.csv [--models DIR] [--where TEXT]``. TABLE is one that `trilemma validate` judges; rows
whose notes lay pools out take part, one run for each of their loads. Nothing is fitted to them. A run has as many prompts for
each user as its script says, lengths drawn from 80 to 100 % of the nominal (RANDOM_RANGE_RATIO of InferenceX).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.measured.serving.speed.benches import kv_format_of
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.serving.speed.refit import read_questions
from trilemma.measured.tables import read_table
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.question import Question
from trilemma.simulation.serving.deployment import simulated_plan
from trilemma.simulation.serving.simulation import SimulationRules, run_once
from trilemma.simulation.serving.stated import stated_traffic
from trilemma.workloads import Serving

_FIGURES = ("ttft_ms", "tpot_ms", "output_tok_s_per_gpu")
_ROUTED = {"moe-a2a-backend": "deepep"}


def question_of(asked: SpeedQuestion, version: str) -> Question[Any, Any]:
    """The deployment that a row names."""
    pools = asked.pools
    assert pools is not None
    narrow = "auto" if kv_format_of(asked.model).name == "bf16" else "fp8_e4m3"
    context = round((asked.isl + asked.osl) / 0.9)

    def pool(role: Any, layout: Layout, replicas: int, fraction: float | None) -> Pool:
        options = ServeOptions(
            context=context, kv_dtype=narrow, memory_fraction=fraction,
            extra=_ROUTED if int(layout.dp) >= pools.routed else {},
        )  # fmt: skip
        return Pool(role=role, layout=layout, replicas=replicas, options=options)

    fraction = pools.memory_fraction
    plan = Plan(
        engine=EngineRef(name=asked.engine, version=version or None),
        pools=(
            pool("prefill", pools.prefill, pools.prefill_workers, fraction),
            pool("decode", pools.decode, pools.decode_workers, fraction),
        ),
    )
    cluster = Cluster.of(asked.accelerator, pools.gpus)
    return Question(model=asked.model, cluster=cluster, workload=Serving(context=context), plan=plan)


def simulated(asked: SpeedQuestion, version: str) -> dict[str, float]:
    pools, users = asked.pools, int(asked.concurrency)
    assert pools is not None
    rounds = int(pools.rounds) if np.isfinite(pools.rounds) else 10
    isl, osl = (f"uniform:{round(mean / 0.9 * 0.8)}:{round(mean / 0.9)}" for mean in (asked.isl, asked.osl))
    nothing = {"trace": None, "lengths": None, "scale_rate": 1.0, "begin_s": 0.0, "span_s": None}
    traffic = stated_traffic(arrivals=f"users:{users}", isl=isl, osl=osl, requests=users * rounds, seed=0, **nothing)
    plan = simulated_plan(question_of(asked, version), typical_tokens=traffic.typical_tokens(), starts=True)
    done = run_once(plan, traffic.again(), SimulationRules())
    book = done.book
    return {
        "ttft_ms": book.ttft.summary()["mean"] * 1e3,
        "tpot_ms": book.tpot.summary()["mean"] * 1e3,
        "output_tok_s_per_gpu": book.output_tokens / book.ended_s / pools.gpus,
        "median ttft_ms": book.ttft.summary()["p50"] * 1e3,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--models")
    parser.add_argument("--where", default="")
    arguments = parser.parse_args(argv)
    rows = [row for row in read_table(arguments.table).rows if arguments.where in row.id]
    runs: dict[Any, SimpleNamespace] = {}
    for row, asked in zip(rows, read_questions(rows, arguments.models), strict=True):
        if isinstance(asked, str) or asked.pools is None or not np.isfinite(asked.concurrency):
            continue
        key = (
            asked.model.name,
            asked.precision,
            asked.accelerator.id,
            asked.engine,
            asked.pools,
            asked.isl,
            asked.concurrency,
        )
        run = runs.setdefault(key, SimpleNamespace(asked=asked, version=row.text("version"), measured={}))
        run.measured.setdefault(asked.metric, []).append(asked.measured)
    errors: dict[str, list[float]] = {name: [] for name in _FIGURES}
    print("| run | " + " | ".join(f"{name} | simulated" for name in _FIGURES) + " |")
    for key, run in runs.items():
        found = simulated(run.asked, "")
        cells = []
        for name in _FIGURES:
            measured = float(np.median(run.measured[name])) if name in run.measured else np.nan
            cells.append(f"{measured:,.1f} | {found[name]:,.1f}")
            if np.isfinite(measured):
                errors[name].append(found[name] / measured)
        pools = run.asked.pools
        layout = f"{pools.prefill_workers}x{int(pools.prefill.gpus)}+{pools.decode_workers}x{int(pools.decode.gpus)}"
        print(f"| {key[1]} {key[5]:.0f} {layout} c{key[6]:.0f} | " + " | ".join(cells) + " |", flush=True)
    for name, ratios in errors.items():
        if ratios:
            error = np.median(np.abs(np.array(ratios) - 1))
            print(f"{name}: {len(ratios)} runs, median error {error:.1%}, ratio {np.median(ratios):.2f}")


if __name__ == "__main__":
    main()
