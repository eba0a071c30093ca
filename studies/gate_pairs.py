"""How often does the gate err on real loss curves: seeds of one recipe, and planted gaps of 2 %?

    python studies/gate_pairs.py --curves curves.json

trains the lab's tiny transformer (one block of width 32, 16 × 32 tokens, 1200 steps) over 24 seeds under BF16, half of them
under FP16 (no gap is expected) and current scaling too, keeps the last 240 losses of every run in ``curves.json`` (eight CPU
minutes; a broken call goes on where it ended) and prints what the gate says of pairs and groups of runs, as they are and with the
candidate's losses multiplied by 1.02. A copy lies beside the gate's tests.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import permutations
from pathlib import Path

import numpy as np

from trilemma.precision.gate import GateRules, gate
from trilemma.precision.lab.matrix import run_matrix
from trilemma.precision.lab.presets import LabJob
from trilemma.precision.lab.recipes import RECIPES
from trilemma.precision.lab.records import LabRun, Regime

REGIME = Regime(
    steps=1200, width=32, layers=1, heads=2, batch=16, context=32, learning_rate=5e-3, probe_every=100_000
)  # fmt: skip
TAIL_STEPS = 240
SEEDS = {"bf16": range(24), "fp16": range(12), "current": range(12)}
PLANTED = 1.02

Curve = dict[int, float]
Curves = dict[str, list[Curve]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, required=True, help="JSON file of loss curves")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    train(arguments.curves, arguments.workers)
    curves = read(arguments.curves)
    describe(curves)
    for title, rules, pairs in comparisons(curves):
        count_outcomes(title, rules, pairs)


def train(path: Path, workers: int) -> None:
    document = json.loads(path.read_text()) if path.exists() else {"losses_x_1000": {name: {} for name in SEEDS}}
    losses = document["losses_x_1000"]
    jobs = [
        LabJob(recipe=RECIPES[name], regime=REGIME, seed=seed)
        for name, seeds in SEEDS.items()
        for seed in seeds
        if str(seed) not in losses.setdefault(name, {})
    ]

    def keep(done: int, total: int, run: LabRun) -> None:
        losses[run.recipe.name][str(run.seed)] = [round(1000 * loss) for loss in run.losses[-TAIL_STEPS:]]
        path.write_text(json.dumps(document, separators=(",", ":")) + "\n")
        print(f"{done}/{total} {run.recipe.name} seed {run.seed}: {run.cpu_s:.1f} CPU-s", file=sys.stderr)

    if jobs:
        run_matrix(jobs, workers=workers, progress=keep)


def read(path: Path) -> Curves:
    losses = json.loads(path.read_text())["losses_x_1000"]
    return {
        name: [{step: loss / 1000 for step, loss in enumerate(losses[name][str(seed)])} for seed in seeds]
        for name, seeds in SEEDS.items()
    }


def describe(curves: Curves) -> None:
    for name, runs in curves.items():
        tails = np.array([list(run.values()) for run in runs])
        level = tails.mean()
        blocks = tails.reshape(len(tails), 10, -1).mean(axis=2)
        inside = blocks.std(axis=1, ddof=1).mean() / np.sqrt(10)
        print(
            f"{name}: {len(runs)} runs end at {level:.3f}; step noise {tails.std(axis=1).mean() / level:.1%},"
            f" standard error of a tail's mean {inside / level:.2%}, spread of tails between seeds"
            f" {tails.mean(axis=1).std(ddof=1) / level:.2%}"
        )


def comparisons(curves: Curves) -> Iterable[tuple[str, GateRules, list[tuple[list[Curve], list[Curve]]]]]:
    whole, paired = GateRules(tail=1.0), GateRules(tail=1.0, paired=True)
    bf16 = curves["bf16"]
    yield "BF16, one seed against one", whole, [([a], [b]) for a, b in permutations(bf16, 2)]
    yield (
        "BF16, one seed against one, no run used twice",
        whole,
        [([a], [b]) for a, b in zip(*halves(bf16), strict=True)],
    )
    for size in (3, 6, 12):
        yield f"BF16, {size} seeds against {size}", whole, drawn(bf16, size, 200)
    for name in ("fp16", "current"):
        both = list(zip(bf16, curves[name], strict=False))
        yield f"BF16 against {name}, same seed and batches (--paired)", paired, [([a], [b]) for a, b in both]
        yield f"BF16 against {name}, 12 other seeds", whole, [(bf16[12:], curves[name])]


def halves(runs: list[Curve]) -> tuple[list[Curve], list[Curve]]:
    return runs[::2], runs[1::2]


def drawn(runs: list[Curve], size: int, count: int) -> list[tuple[list[Curve], list[Curve]]]:
    random = np.random.default_rng(0)
    found = []
    for _ in range(count):
        chosen = random.permutation(len(runs))[: 2 * size]
        found.append(([runs[one] for one in chosen[:size]], [runs[one] for one in chosen[size:]]))
    return found


def count_outcomes(title: str, rules: GateRules, pairs: list[tuple[list[Curve], list[Curve]]]) -> None:
    def outcomes(change: Callable[[Curve], Curve]) -> str:
        found = Counter(gate(one, [change(run) for run in other], rules).outcome for one, other in pairs)
        return ", ".join(f"{word} {found[word] / len(pairs):.1%}" for word in ("fail", "pass", "not enough data"))

    print(f"\n{title}: {len(pairs)} comparisons")
    print(f"  no gap:  {outcomes(dict)}")
    print(f"  2 % gap: {outcomes(lambda run: {step: PLANTED * loss for step, loss in run.items()})}")


if __name__ == "__main__":
    main()
