"""Does the training lab's early warning foretell the end, and are its alarms right?

    python studies/train_lab_matrix.py --rows rows.json --workers 2

runs the preset ``outliers`` and, without outliers, recipes for gradients and storage, over three seeds (6 CPU minutes),
keeps what it needs of every run in ``rows.json`` (read again when it is there) and prints: rank correlations of candidate
warnings with the final loss gap over runs that outlived the first three steps, and how often each alarm was right. What was
chosen on which runs stands in docs/low-precision-training.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.precision.lab.alarms import Thresholds, alarms_of
from trilemma.precision.lab.matrix import run_matrix
from trilemma.precision.lab.presets import PRESETS
from trilemma.precision.lab.recipes import REFERENCE
from trilemma.precision.lab.records import Probe, Run
from trilemma.precision.lab.warning import EARLY_STEPS, early_warning, final_gaps, spearman

FIRST_SEEDS = (0,)
OTHER_SEEDS = (1, 2)
EXPERIMENTS = {
    "outliers": PRESETS["outliers"],
    "plain": replace(
        PRESETS["plain"],
        recipes=(
            "naive",
            "naive-hybrid",
            "naive-head-kept",
            "naive-attention",
            "naive-forward",
            "naive-loss-scale",
            "current",
            "fp16-unscaled",
            "mxfp8-floor",
            "nvfp4-plain",
            "stored-e4m3",
            "stored-e4m3-stochastic",
            "bf16-pure",
        ),
    ),
}
#: A run whose final loss is this far above BF16 of its seed, or that stopped, counts as bad.
BAD_GAP = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="JSON file of what was measured")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    if not arguments.rows.exists():
        arguments.rows.write_text(json.dumps(measure(arguments.workers)), encoding="utf-8")
    rows = json.loads(arguments.rows.read_text(encoding="utf-8"))
    print_correlations(rows)
    print_alarms(rows)


def measure(workers: int) -> list[dict[str, Any]]:
    """One row a run, over all experiments and seeds."""
    rows = []
    for name, preset in EXPERIMENTS.items():
        experiment = replace(preset, seeds=(*FIRST_SEEDS, *OTHER_SEEDS))
        runs = run_matrix(experiment.jobs(), workers=workers, progress=show)
        references = [run for run in runs if run.recipe.name == REFERENCE]
        others = [run for run in runs if run.recipe.name != REFERENCE]
        for run, gap in zip(others, final_gaps(others, references), strict=True):
            rows.append(row_of(name, run, gap))
    return rows


def show(done: int, total: int, run: Run) -> None:
    print(f"{done}/{total} {run.recipe.name} seed {run.seed}: {run.cpu_s:.1f} CPU-s", file=sys.stderr)


def row_of(experiment: str, run: Run, gap: float) -> dict[str, Any]:
    early = [probe for probe in run.probes if probe.step < EARLY_STEPS]
    raised = [[alarm.signal for alarm in look] for look in alarms_of(run, Thresholds.shipped())]
    figures = {name: [figure(probe) for probe in early] for name, figure in FIGURES.items()}
    return {
        "experiment": experiment,
        "learning_rate": run.regime.learning_rate,
        "recipe": run.recipe.name,
        "seed": run.seed,
        "gap": None if math.isinf(gap) else gap,
        "stopped_at": run.stopped_at,
        "early_warning": early_warning(run),
        "figures": figures,
        "alarms": {probe.step: found for probe, found in zip(run.probes, raised, strict=True)},
    }


def lowest(role: str, figure: str) -> Callable[[Probe], float]:
    def read(probe: Probe) -> float:
        worst = probe.worst(role, figure, lowest=figure == "sqnr_db")
        return 0.0 if worst is None else worst[0] * (-1 if figure == "sqnr_db" else 1)

    return read


#: Candidate warnings of one step, higher = worse.
FIGURES: dict[str, Callable[[Probe], float]] = {
    "1 - gradient cosine": lambda probe: 1 - probe.gradient.cosine,
    "|log norm ratio|": lambda probe: abs(math.log(probe.gradient.norm_ratio or math.nan)),
    "-SQNR of output gradients": lowest("g", "sqnr_db"),
    "underflows% of output gradients": lowest("g", "underflows_percent"),
    "-SQNR of activations": lowest("x", "sqnr_db"),
    "overflows% of activations": lowest("x", "overflows_percent"),
    "frozen update %": lambda probe: probe.frozen_percent or 0.0,
}


def print_correlations(rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"\nSpearman with the final gap of runs that outlived {EARLY_STEPS} steps: seed {FIRST_SEEDS}, seeds {OTHER_SEEDS}"
    )
    names = ["early warning", *FIGURES]
    for name in names:
        first = correlation(rows, name, FIRST_SEEDS)
        others = correlation(rows, name, OTHER_SEEDS)
        parts = [correlation([row for row in rows if row["experiment"] == e], name, OTHER_SEEDS) for e in EXPERIMENTS]
        by = ", ".join(f"{e} {part:.2f}" for e, part in zip(EXPERIMENTS, parts, strict=True))
        print(f"  {name:34s} first seed {first:5.2f}  other seeds {others:5.2f}  ({by})")
    print(f"  runs: {len(of(rows, FIRST_SEEDS))} of the first seed, {len(of(rows, OTHER_SEEDS))} of the others")


def correlation(rows: Sequence[dict[str, Any]], name: str, seeds: Sequence[int]) -> float:
    some = of(rows, seeds)
    return spearman(
        [warning(row, name) for row in some], [math.inf if row["gap"] is None else row["gap"] for row in some]
    )


def warning(row: dict[str, Any], name: str) -> float:
    if name == "early warning":
        return float(row["early_warning"])
    values = [math.inf if value is None or math.isnan(value) else value for value in row["figures"][name]]
    return float(np.median(values)) if len(values) == EARLY_STEPS else math.inf


def of(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of ``seeds`` whose run outlived the steps that warnings look at."""
    return [
        row for row in rows if row["seed"] in seeds and (row["stopped_at"] is None or row["stopped_at"] >= EARLY_STEPS)
    ]


def print_alarms(rows: Sequence[dict[str, Any]]) -> None:
    signals = sorted({signal for row in rows for found in row["alarms"].values() for signal in found})
    print(f"\nalarms in any two looks, against runs that end {BAD_GAP} above BF16 or stop (seeds {OTHER_SEEDS})")
    judged = of(rows, OTHER_SEEDS)
    bad = [row for row in judged if row["gap"] is None or row["gap"] > BAD_GAP]
    good = [row for row in judged if row not in bad]
    for signal in [*signals, "any"]:
        hits = sum(raised(row, signal) for row in bad)
        false = sum(raised(row, signal) for row in good)
        print(f"  {signal:44s} raised in {hits} of {len(bad)} bad runs and {false} of {len(good)} good ones")
    for row in good:
        if raised(row, "any"):
            print(f"    good but alarmed: {row['experiment']} {row['recipe']} seed {row['seed']} gap {row['gap']:.3f}")
    for row in bad:
        if not raised(row, "any"):
            gap = "stopped" if row["gap"] is None else f"{row['gap']:.3f}"
            print(f"    bad, no alarm: {row['experiment']} {row['recipe']} seed {row['seed']} gap {gap}")


def raised(row: dict[str, Any], signal: str) -> bool:
    """Whether the signal is raised in two looks that follow each other, or in the last one of a run that stopped."""
    looks = list(row["alarms"].values())
    for at, found in enumerate(looks):
        follower = looks[at + 1] if at + 1 < len(looks) else (found if row["stopped_at"] is not None else [])
        both = set(found) & set(follower)
        if (signal == "any" and both) or signal in both:
            return True
    return False


if __name__ == "__main__":
    main()
