"""The standard questions put to this planner and to aiconfigurator 0.12, side by side: the tables of docs/comparison.md.

    python -m venv aic && aic/bin/pip install "aiconfigurator==0.12.*"
    python studies/compare_planners.py --aiconfigurator aic/bin/python --measured TABLE.csv [--into docs/comparison.md]

``--measured`` is a table of measured deployments as ``trilemma validate`` reads it. Without the other tool or without a
table the questions that need them are passed over, and said to be. ``--only`` names questions; ``--into`` puts each table
between its marks in a document instead of printing it. Seconds are of whole commands, one after the other.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner_accuracy import (
    Deployment,
    Peer,
    answered,
    answered_elsewhere,
    elsewhere_rows,
    error_rows,
    group_rows,
    successor_rows,
)
from planner_tables import (
    PLAN_HEAD,
    latencies,
    our_plans,
    shortened,
    speed_cells,
    table,
    their_latencies,
    their_plans,
    their_speed_cells,
    wall,
)
from planners import ENGINES, Aiconfigurator, ours

ROOT = Path(__file__).parents[1]
#: Parts of a comparison: name of the table → Markdown.
Tables = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What is at hand: the other tool, a measured table, the slice tool."""

    other: Aiconfigurator | None
    measured: str | None
    elsewhere: Sequence[str]
    models: str | None
    tier: str
    number: int
    seed: int
    slice_python: str | None
    peers: Sequence[Peer]


def llama_bf16(setup: Setup) -> Tables:
    """Llama-3.1-70B, BF16, TP8 on 8 x H200, prompts of 4,096, outputs of 1,024, 64 in flight."""
    rows = []
    for theirs, mine in ENGINES.items():
        answer = ours(
            "fit", "llama-3.1-70b", "--gpu", "h200-sxm:8", "--tp", "8", "--isl", "4096", "--osl", "1024",
            "--concurrency", "64", "--engine", mine,
        )  # fmt: skip
        rows.append([mine, "trilemma", *speed_cells(answer.document["speed"]), wall(answer)])
        if setup.other is not None:
            other = setup.other.estimate(
                model="meta-llama/Meta-Llama-3.1-70B", system="h200_sxm", engine=theirs,
                isl=4096, osl=1024, batch_size=64, tp_size=8,
            )  # fmt: skip
            rows.append([mine, "aiconfigurator", *their_speed_cells(other), wall(other)])
    return {"llama-bf16": table(["engine", "tool", "TTFT ms", "TPOT ms", "tok/s/GPU", "s (CPU)"], rows)}


_LLAMA_FP8 = "nvidia/Llama-3.1-70B-Instruct-FP8"


def llama_fp8(setup: Setup) -> Tables:
    """Llama-3.1-70B, FP8, on 8 x H100, TTFT at most 1 s and TPOT at most 40 ms: best plans, then one plan by both."""
    best, same = [], []
    for theirs, mine in ENGINES.items():
        answer = ours(
            "plan", "llama-3.1-70b-fp8", "--gpu", "h100-sxm:8", "--serve", "4000/1000", "--ttft", "1000", "--tpot", "40",
            "--precision", "as-is", "--engine", mine,
        )  # fmt: skip
        best += [[mine, "trilemma", *cells, wall(answer)] for cells in our_plans(answer.document["plans"][:3])]
        fixed = ours(
            "fit", "llama-3.1-70b-fp8", "--gpu", "h100-sxm:8", "--tp", "4", "--dp", "2", "--isl", "4000", "--osl", "1000",
            "--concurrency", "192", "--kv-dtype", "fp8", "--engine", mine,
        )  # fmt: skip
        same.append([mine, "trilemma", *speed_cells(fixed.document["speed"])])
        if setup.other is None:
            continue
        found = setup.other.search(
            model=_LLAMA_FP8, system="h100_sxm", engine=theirs, isl=4000, osl=1000, ttft=1000, tpot=40, total_gpus=8
        )
        best += [[mine, "aiconfigurator", *cells, wall(found)] for cells in their_plans(found, 8)[:3]]
        other = setup.other.estimate(
            model=_LLAMA_FP8, system="h100_sxm", engine=theirs, isl=4000, osl=1000, batch_size=96, tp_size=4
        )
        same.append([mine, "aiconfigurator", *their_speed_cells(other)])
    return {
        "llama-fp8-plans": table(["engine", "tool", *PLAN_HEAD, "s (CPU)"], best),
        "llama-fp8-same-plan": table(["engine", "tool", "TTFT ms", "TPOT ms", "tok/s/GPU"], same),
    }


_CARDS = {"h200-sxm": "h200_sxm", "b200-sxm": "b200_sxm", "b300-sxm": "b300_sxm"}
_DEEPSEEK = "deepseek-ai/DeepSeek-V3"


def deepseek(setup: Setup) -> Tables:
    """DeepSeek-V3 as published (FP8) on eight cards of three kinds, TTFT at most 2 s and TPOT at most 50 ms."""
    rows = []
    for mine, theirs in _CARDS.items():
        for their_engine, engine in ENGINES.items():
            answer = ours(
                "plan", "deepseek-v3", "--gpu", f"{mine}:8", "--serve", "4096/1024", "--ttft", "2000", "--tpot", "50",
                "--precision", "as-is", "--engine", engine,
            )  # fmt: skip
            rows += [
                [mine, engine, "trilemma", *cells, wall(answer)] for cells in our_plans(answer.document["plans"][:1])
            ]
            if setup.other is not None:
                found = setup.other.search(
                    model=_DEEPSEEK, system=theirs, engine=their_engine, isl=4096, osl=1024, ttft=2000, tpot=50,
                    total_gpus=8,
                )  # fmt: skip
                plans = their_plans(found, 8)[:1] or [[found.error, *["–"] * 4]]
                rows += [[mine, engine, "aiconfigurator", *cells, wall(found)] for cells in plans]
    return {"deepseek-plans": table(["8 cards", "engine", "tool", *PLAN_HEAD, "s (CPU)"], rows)}


#: Precision → ours, and their modes of GEMMs and experts (``sq`` is their INT8 with INT8 activations).
_PRECISIONS = {
    "BF16": ("bf16", "bfloat16", "bfloat16"),
    "FP8": ("fp8", "fp8", "fp8_block"),
    "NVFP4": ("nvfp4", "nvfp4", "nvfp4"),
    "INT8": ("int8", "sq", "bfloat16"),
}


def precisions(setup: Setup) -> Tables:
    """One plan in four precisions on B200 and B300: a dense model at TP8, a mixture at TP8 (16 cards in BF16: two stages)."""
    jobs, rows = [], []
    for label, (mine, gemm, moe) in _PRECISIONS.items():
        for name, hub in (("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B"), ("deepseek-v3", _DEEPSEEK)):
            mixture = name == "deepseek-v3"
            pp = 2 if mixture and label == "BF16" else 1
            precision = "as-is" if mixture and label == "FP8" else mine
            cells = [name, label, f"TP8 PP{pp}" if pp > 1 else "TP8"]
            for card in ("b200-sxm", "b300-sxm"):
                answer = ours(
                    "fit", name, "--gpu", f"{card}:{8 * pp}", "--tp", "8", "--pp", str(pp), "--isl", "4096", "--osl", "1024",
                    "--concurrency", "64", "--precision", precision,
                )  # fmt: skip
                cells.append(latencies(answer.document["speed"]))
            rows.append(cells)
            modes: dict[str, Any] = {"gemm_quant_mode": gemm}
            if mixture:
                modes = {} if label == "FP8" else {**modes, "moe_quant_mode": moe}
                modes |= {"moe_tp_size": 8, "moe_ep_size": 1}
            load = {"isl": 4096, "osl": 1024, "batch_size": 64, "tp_size": 8, "pp_size": pp, "backend_name": "vllm"}
            jobs += [[{"model_path": hub, "system_name": card, **load, **modes}] for card in ("b200_sxm", "b300_sxm")]
    head = ["model", "precision", "plan", "trilemma B200", "trilemma B300"]
    if setup.other is not None:
        answers = setup.other.estimates(jobs)
        for at, cells in enumerate(rows):
            cells += [their_latencies(answers[2 * at]), their_latencies(answers[2 * at + 1])]
        head += ["aiconfigurator B200", "aiconfigurator B300"]
    return {"precisions": table(head, rows)}


#: Our card, its word at aiconfigurator, and the (engine, precision) asked of ours.
_SINGLE = (
    ("rtx-4090", "rtx_4090", (("vllm", "awq"), ("llama.cpp", "q4_k_m"))),
    ("rtx-5090", "rtx_5090", (("vllm", "awq"), ("vllm", "nvfp4"), ("llama.cpp", "q4_k_m"))),
    ("l40s", "l40s", (("vllm", "awq"), ("vllm", "fp8"), ("llama.cpp", "q4_k_m"))),
    ("m4-max", "m4_max", (("llama.cpp", "q4_k_m"),)),
)


def single_cards(setup: Setup) -> Tables:
    """Qwen3-32B on one card of a workstation or a Mac, one request of 4,096 and 1,024 tokens at a time."""
    rows, words = [], []
    for card, system, asked in _SINGLE:
        for engine, precision in asked:
            answer = ours(
                "fit", "qwen3-32b", "--gpu", card, "--isl", "4096", "--osl", "1024", "--concurrency", "1",
                "--engine", engine, "--precision", precision,
            )  # fmt: skip
            told = answer.document
            probability = told["verdict"]["probability"]
            verdict = f"{'fits' if told['fits'] else 'does not fit'}, {min(probability, 0.99):.0%}"
            longest = f"{told['kv_cache']['max_context']:,}"
            rows.append([card, engine, precision, verdict, longest, *speed_cells(told["speed"]), wall(answer)])
        if setup.other is not None:
            cases: tuple[tuple[str, str, dict[str, str]], ...] = (("BF16", "Qwen/Qwen3-32B", {}),)
            if system == "l40s":
                cases += (("FP8", "Qwen/Qwen3-32B-FP8", {}),)
                cases += (("INT4", "Qwen/Qwen3-32B", {"gemm_quant_mode": "int4_wo"}),)
            for label, model, modes in cases:
                other = setup.other.estimate(
                    model=model, system=system, engine="vllm", isl=4096, osl=1024, batch_size=1, tp_size=1, **modes
                )
                told_us = (
                    f"“{shortened(other.error)}”" if other.error else " / ".join(their_speed_cells(other)[:2]) + " ms"
                )
                words.append([system, label, told_us, str(other.exit_code), wall(other)])
    head = ["card", "engine", "weights", "verdict", "longest", "TTFT ms", "TPOT ms", "tok/s/GPU", "s (CPU)"]
    found = {"single-cards": table(head, rows)}
    if words:
        found["single-cards-theirs"] = table(
            ["system", "weights", "TTFT / TPOT, or its words", "exit", "s (CPU)"], words
        )
    return found


def accuracy(setup: Setup) -> Tables:
    """Both tools on the same measured rows, and the rows nearest to the plan that both find for Llama-3.1-70B in FP8."""
    if setup.other is None or setup.measured is None:
        return {}
    drawn, near = answered(
        setup.measured, setup.peers, models=setup.models, tier=setup.tier, number=setup.number, seed=setup.seed,
        wanted=_near_the_fp8_plan,
    )  # fmt: skip
    silent = [one for one in drawn if not one.theirs]
    newer = successor_rows("InferenceX, held out", drawn, "held_out")
    head = ["figure", "models", "n"]
    for who in ("aiconfigurator", "trilemma", "trilemma held out"):
        head += [f"{who}: median", "mean", "bias"]
    groups = ["deployment", "n"]
    for figure in ("TTFT", "TPOT"):
        groups += [f"{figure}: aiconfigurator", "trilemma", "held out"]
    rows = []
    for one in near:
        said = [f"{source[name]:,.1f}" for name in ("ttft_ms", "tpot_ms") for source in _sources(one)]
        rows.append([f"{one.cells['isl']}/{one.cells['osl']}", one.cells["concurrency_or_batch"], *said])
    nearest = ["ISL/OSL", "in flight"]
    for figure in ("TTFT", "TPOT"):
        nearest += [f"{figure}: measured", "trilemma", "held out", "aiconfigurator"]
    return {
        "accuracy": f"{len(drawn)} deployments drawn with seed {setup.seed}; aiconfigurator answered all but {len(silent)}.\n\n"
        + table(head, error_rows(drawn)),
        "accuracy-groups": table(groups, group_rows(drawn)),
        "llama-fp8-nearest": table(nearest, rows),
    } | ({"accuracy-successor": table(_NEWER, newer)} if newer else {})


def elsewhere(setup: Setup) -> Tables:
    """Both tools on tables of other publishers, to which no term of ours was fitted."""
    if setup.other is None or not setup.elsewhere:
        return {}
    rows, newer = [], []
    for path in setup.elsewhere:
        drawn = answered_elsewhere(
            path, setup.peers, models=setup.models, assume=["isl=150"], number=setup.number, seed=setup.seed
        )
        rows += elsewhere_rows(Path(path).stem.removeprefix("serving_"), drawn)
        newer += successor_rows(Path(path).stem.removeprefix("serving_"), drawn, "shipped")
    head = ["table", "figure", "drawn", "answered"]
    for who in ("aiconfigurator", "trilemma"):
        head += [f"{who}: median", "mean", "bias"]
    return {"elsewhere": table(head, rows)} | ({"elsewhere-successor": table(_NEWER, newer)} if newer else {})


_NEWER = ["table", "figure", "answered by all"]
_NEWER += [f"{tool}: {part}" for tool in ("AISimulate", "aiconfigurator", "trilemma") for part in ("median", "mean")]


def _near_the_fp8_plan(one: Deployment) -> bool:
    cells = one.cells
    named = (cells["model"].endswith("Llama-3.1-70B"), cells["gpu"] == "h100_sxm", cells["engine"] == "vllm")
    load = (cells["isl"], cells["osl"], cells["concurrency_or_batch"])
    loads = (("1024", "1024", "64"), ("8192", "1024", "32"), ("8192", "1024", "64"))
    return all(named) and cells["tp"] == "4" and load in loads


def _sources(one: Deployment) -> tuple[Mapping[str, float], ...]:
    return one.measured, one.shipped, one.held_out, one.theirs


def speed(setup: Setup) -> Tables:
    """Plans per second on one core, and whole commands on the same question, in one run."""
    command = [sys.executable, str(ROOT / "benchmarks" / "search.py")]
    if setup.other is not None:
        command += ["--aiconfigurator", str(Path(setup.other.python).with_name("aiconfigurator"))]
    if shutil.which("taskset"):
        command = ["taskset", "-c", "0", *command]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()
    plan = ("plan", "llama-3.1-70b", "--gpu", "h200-sxm:8", "--serve", "4096/1024", "--ttft", "5000", "--tpot", "50")
    runs = [ours(*plan) for _ in range(5)]
    clock, cpu = (statistics.median(getattr(run, name) for run in runs) for name in ("seconds", "cpu_seconds"))
    told += f"\n  {'the whole command, median of 5':<34} {'':>14} {clock:>8.3f} s, of the CPU {cpu:.3f} s"
    if setup.slice_python is not None:
        rate = subprocess.run(
            [setup.slice_python, "-W", "ignore", "-c", _SLICE], capture_output=True, text=True, check=True
        ).stdout
        told += f"\n  {'llm-analysis, one static batch each':<34} {'':>14} {'':>10} {float(rate.split()[-1]):>12,.1f} plans/s"
    return {"speed": f"```text\n{told}\n```"}


#: llm-analysis 0.2 timed in its environment: one decode of a fixed batch, no load, no search.
_SLICE = """
import contextlib, io, logging, time
from llm_analysis.analysis import infer
logging.disable(logging.CRITICAL)
start, done = time.perf_counter(), 0
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    while time.perf_counter() - start < 3:
        infer(model_name="upstage_Llama-2-70b-instruct-v2", gpu_name="h100-sxm-80gb", tp_size=8, batch_size_per_gpu=1 + done % 64,
              seq_len=1024, num_tokens_to_generate=256, flops_efficiency=0.5, hbm_memory_efficiency=0.8, log_level="ERROR")
        done += 1
print(done / (time.perf_counter() - start))
"""

QUESTIONS: Mapping[str, Callable[[Setup], Tables]] = {
    "llama-bf16": llama_bf16,
    "llama-fp8": llama_fp8,
    "deepseek": deepseek,
    "precisions": precisions,
    "single-cards": single_cards,
    "accuracy": accuracy,
    "elsewhere": elsewhere,
    "speed": speed,
}


def put(tables: Tables, path: Path) -> None:
    """Every table between its marks ``<!-- table: NAME -->`` and ``<!-- end -->`` of the document."""
    text = path.read_text(encoding="utf-8")
    for name, one in tables.items():
        marks = re.compile(rf"(<!-- table: {re.escape(name)} -->\n)(?:(?!<!-- ).)*(<!-- end -->)", re.DOTALL)
        text, count = marks.subn(lambda found, one=one: f"{found[1]}{one}\n{found[2]}", text)
        if count != 1:
            raise SystemExit(f"{path} has {count} places for the table {name}; it needs one")
    path.write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiconfigurator", metavar="PYTHON", help="python of the environment where it is installed")
    parser.add_argument(
        "--aisimulate", metavar="PYTHON", help="python of the environment of aiconfigurator's successor"
    )
    parser.add_argument("--llm-analysis", metavar="PYTHON", help="python of the environment where it is installed")
    parser.add_argument("--measured", metavar="TABLE.csv")
    parser.add_argument("--elsewhere", nargs="+", default=[], metavar="TABLE.csv", help="tables of other publishers")
    parser.add_argument(
        "--models", metavar="DIR", help="configurations of the table's models, as for trilemma validate"
    )
    parser.add_argument("--tier", default="A", help="rows of the table that count (default A)")
    parser.add_argument("--deployments", type=int, default=120, help="how many to draw (default 120)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help="keep what aiconfigurator says of measured rows here, and use it again",
    )
    parser.add_argument("--successor-answers", type=Path, metavar="FILE", help="the same of AISimulate")
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the tables into this document")
    arguments = parser.parse_args(argv)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    other = None
    if arguments.aiconfigurator and Path(arguments.aiconfigurator).exists():
        other = Aiconfigurator(python=arguments.aiconfigurator)
        print(f"aiconfigurator {other.version()}", file=sys.stderr)
    else:
        print("aiconfigurator is not installed (see --aiconfigurator): only ours is asked", file=sys.stderr)
    peers = [] if other is None else [Peer(tool=other, answers=arguments.answers)]
    if arguments.aisimulate or arguments.successor_answers:
        newer = Aiconfigurator(
            python=arguments.aisimulate or sys.executable, name="aisimulate", module="aisimulate.legacy_cli.api"
        )
        peers.append(Peer(tool=newer, answers=arguments.successor_answers, into="successor"))
    if arguments.measured is None or other is None:
        print("accuracy is passed over: it needs --aiconfigurator and --measured", file=sys.stderr)
    setup = Setup(
        other=other, measured=arguments.measured, elsewhere=arguments.elsewhere, models=arguments.models, tier=arguments.tier,
        number=arguments.deployments, seed=arguments.seed, slice_python=arguments.llm_analysis, peers=peers,
    )  # fmt: skip
    for name in arguments.only:
        tables = QUESTIONS[name](setup)
        if arguments.into is not None:
            put(tables, arguments.into)
            continue
        for name_of_table, text in tables.items():
            print(f"\n### {name_of_table}\n\n{text}", flush=True)


if __name__ == "__main__":
    main()
