"""How many serving plans a second the search prices on one core, beside the established planner on the same question.

Our figures: the search that ``trilemma plan`` runs (some hundred plans for each precision, so that what is done once per
precision shows), with prefill and decode apart and without; and the same functions over every load from 1 to 1,024 requests,
which is what a simulator or a sweep asks for. All price memory and speed in full: weights, activations, graphs, cache pool,
verdict, prefill and decode. The searches for any number of GPUs are whole searches, estimates of the plans shown included.

The other tool is aiconfigurator 0.12 in an environment of its own; without one the benchmark says so and prints ours only:

    python -m venv aic && aic/bin/pip install aiconfigurator==0.12.0
    python benchmarks/search.py [--aiconfigurator aic/bin/aiconfigurator] [--check]
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from trilemma.hardware.catalogue import find  # noqa: E402
from trilemma.hardware.cluster import Cluster  # noqa: E402
from trilemma.models.resolve import load_model  # noqa: E402
from trilemma.plans import EngineRef  # noqa: E402
from trilemma.search.precisions import kv_dtypes, precisions  # noqa: E402
from trilemma.search.question import FormatChoice, PoolsAsked, SearchQuestion  # noqa: E402
from trilemma.search.search import search_serving, table_of  # noqa: E402
from trilemma.search.space import BATCHES, Constraints  # noqa: E402
from trilemma.workloads import Serving  # noqa: E402

#: Plans a second that the sweep has to reach on one core.
BAR = 100_000
ISL, OSL, TTFT_MS, TPOT_MS = 4096, 1024, 5000, 50
MODEL, HUB_ID = "llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B"
GPUS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Plans priced and the seconds that took."""

    plans: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.plans / self.seconds


def best_of(run: Callable[[], int], *, times: int) -> Measured:
    """The quickest of ``times`` runs: others only add the noise of a shared machine."""
    run()
    taken = []
    plans = 0
    for _ in range(times):
        start = time.process_time()
        plans = run()
        taken.append(time.process_time() - start)
    return Measured(plans=plans, seconds=min(taken))


def ours(
    *, batches: tuple[int, ...] = BATCHES, all_precisions: bool, times: int, pools: PoolsAsked, gpus: int = GPUS
) -> Measured:
    """CPU seconds of the table behind ``trilemma plan`` for the question above."""
    model, cluster = load_model(MODEL), Cluster.of(find("h200-sxm"), gpus)
    workload = Serving(isl=ISL, osl=OSL, ttft_ms=TTFT_MS, tpot_ms=TPOT_MS)
    question = SearchQuestion(
        cluster=cluster, workload=workload, fixed=Constraints(), engine=EngineRef(), batches=batches, pools=pools
    )  # fmt: skip
    chosen = precisions(model, cluster.accelerator, None if all_precisions else ["as-is"])
    choices = [
        FormatChoice(precision=one, kv_dtype=kv)
        for one in chosen
        for kv in kv_dtypes(one.model, cluster.accelerator, None)
    ]
    return best_of(lambda: table_of(model, choices, question).tally.legal, times=times)


def least_gpus(*, rate: float, times: int) -> Measured:
    """CPU seconds of the search for the fewest GPUs that carry ``rate`` requests a second."""
    model, node = load_model(MODEL), Cluster.of(find("h200-sxm"), GPUS)
    workload = Serving(isl=ISL, osl=OSL, ttft_ms=TTFT_MS, tpot_ms=TPOT_MS, rate=rate)
    return best_of(lambda: search_serving(model, node, workload, pools="both", free=True).legal, times=times)


def whole_command() -> float:
    """Wall-clock seconds of the command itself, the second of two runs."""
    command = [sys.executable, "-m", "trilemma", "plan", MODEL, "--gpu", f"h200-sxm:{GPUS}", "--serve", f"{ISL}/{OSL}"]
    command += ["--ttft", str(TTFT_MS), "--tpot", str(TPOT_MS)]
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - start
    return seconds


def theirs(program: str) -> tuple[Measured, str]:
    """Wall-clock seconds of aiconfigurator's search of the same question, the points it kept, and its best line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "cli", "default", "--model-path", HUB_ID, "--system", "h200_sxm", "--total-gpus", str(GPUS)]
        command += ["--backend", "vllm", "--serving-mode", "agg", "--isl", str(ISL), "--osl", str(OSL)]
        command += ["--ttft", str(TTFT_MS), "--tpot", str(TPOT_MS), "--save-dir", folder]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        seconds = time.perf_counter() - start
        tables = list(Path(folder).rglob("pareto.csv"))
        if done.returncode != 0 or not tables:
            raise SystemExit(f"aiconfigurator exits with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
        points = list(csv.DictReader(tables[0].open(encoding="utf-8")))
        best = next((line for line in done.stdout.splitlines() if line.startswith("|  1 ")), "")
    return Measured(plans=len(points), seconds=seconds), " ".join(best.split())


def main() -> int:
    parser = argparse.ArgumentParser(description="Serving plans per second on one core.")
    parser.add_argument(
        "--aiconfigurator", default=shutil.which("aiconfigurator"), help="its program, in its own environment"
    )
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="exit 1 when the bar is missed")
    arguments = parser.parse_args()
    print(f"{HUB_ID} on {GPUS} x H200, {ISL}/{OSL} tokens, TTFT {TTFT_MS} ms, TPOT {TPOT_MS} ms")
    times = arguments.times
    search = ours(all_precisions=True, times=times, pools="aggregated")
    apart = ours(all_precisions=True, times=times, pools="both")
    sweep = ours(batches=tuple(range(1, 1025)), all_precisions=False, times=times, pools="aggregated")
    both = ours(batches=tuple(range(1, 1025)), all_precisions=False, times=times, pools="both")
    rows = {
        "search, all precisions": search,
        "the same with pools apart": apart,
        "the same on 64 GPUs": ours(all_precisions=True, times=times, pools="both", gpus=64),
        "fewest GPUs for 20 requests/s": least_gpus(rate=20.0, times=times),
        "sweep, every load 1 to 1,024": sweep,
        "the same with pools apart ": both,
    }
    for name, figure in rows.items():
        print(f"  {name:<34} {figure.plans:>8,} plans {figure.seconds:>8.3f} s {figure.per_second:>12,.0f} plans/s")
    print(f"  pools apart: {apart.seconds / search.seconds:.1f} times the time of the search without them")
    command = whole_command()
    print(f"  {'the whole command':<34} {'':>14} {command:>8.3f} s")
    if arguments.aiconfigurator and Path(arguments.aiconfigurator).exists():
        other, best = theirs(arguments.aiconfigurator)
        name = "aiconfigurator, the whole command"
        print(f"  {name:<34} {other.plans:>8,} kept  {other.seconds:>8.3f} s {other.per_second:>12,.1f} kept/s")
        print(f"    its best: {best}")
        print(
            f"  our command is {other.seconds / command:,.0f} times as quick; our plans priced over their points kept:"
        )
        print(f"  search {search.per_second / other.per_second:,.0f}, sweep {sweep.per_second / other.per_second:,.0f}")
    else:
        print("  aiconfigurator is not installed; only ours is shown")
    missed = min(sweep.per_second, both.per_second) < BAR
    print(f"bar: {BAR:,} plans a second, {'missed' if missed else 'met'}")
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
