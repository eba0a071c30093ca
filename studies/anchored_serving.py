"""How near are predictions that start from two measured points, beside a look-up between them?

    python studies/anchored_serving.py TABLE.csv… [--models DIR] [--fit]

For each figure of one deployment and one pair of lengths with at least four loads (tier A), the deployment's own offsets taken
out of the shipped terms: two loads are given (the ends; a quarter from each; all pairs), the others are predicted. ``--fit``
searches the numbers of data/coefficients/serving_anchors.toml again.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from serving_profile_bars import _without
from serving_profile_points import _benches

from trilemma.measured.serving.deployment.profile import predicted
from trilemma.timing.anchoring import anchor_numbers, corrections
from trilemma.timing.serving_terms import shipped

FEWEST_LOADS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One figure over the loads of one deployment and pair of lengths: logarithms of measured over predicted, and of measured."""

    figure: str
    loads: tuple[tuple[float, float, float], ...]
    off: np.ndarray[Any, Any]
    measured: np.ndarray[Any, Any]


def series_of(table: str, models: str | None) -> Iterator[Series]:
    for whole in _benches(table, models)[0]:
        bench = whole.take(np.isin(whole.quantity, ("tpot", "ttft")) & np.isnan(whole.rate))
        if not len(bench.isl):
            continue
        off = np.log(bench.measured / predicted(bench, _without(shipped(), bench), {}))
        shape = np.broadcast_shapes(bench.isl.shape)
        degrees = [np.broadcast_to(np.asarray(getattr(bench.layout, name)), shape) for name in ("tp", "pp", "dp", "ep")]
        keys = [*zip(bench.quantity.tolist(), bench.isl, bench.osl, *degrees, strict=True)]
        for key in sorted(set(keys)):
            own = np.array([one == key for one in keys])
            loads = np.unique(bench.concurrency[own])
            if len(loads) < FEWEST_LOADS:
                continue
            at = [own & (bench.concurrency == load) for load in loads]
            yield Series(
                figure=key[0], loads=tuple((float(key[1]), float(key[2]), float(load)) for load in loads),
                off=np.array([np.median(off[one]) for one in at]),
                measured=np.array([np.median(np.log(bench.measured[one])) for one in at]),
            )  # fmt: skip


PAIRS: dict[str, Callable[[int], list[tuple[int, int]]]] = {
    "the ends": lambda n: [(0, n - 1)],
    "a quarter from each end": lambda n: [(n // 4, n - 1 - n // 4)] if n // 4 < n - 1 - n // 4 else [],
    "all pairs": lambda n: list(itertools.combinations(range(n), 2)),
}


def judge(found: Sequence[Series], pairs: Callable[[int], list[tuple[int, int]]]) -> str:
    errors, inside, physics, look_up, beside = [], [], [], [], []
    for one in found:
        for low, high in pairs(len(one.loads)):
            rest = [at for at in range(len(one.loads)) if at not in (low, high)]
            mean, half = corrections(
                [one.loads[low], one.loads[high]],
                one.off[[low, high]].tolist(),
                [one.loads[at] for at in rest],
                one.figure,
            )
            left = one.off[rest] - mean
            errors += np.abs(np.expm1(-left)).tolist()
            inside += (np.abs(left) <= half).tolist()
            physics += np.abs(np.expm1(-one.off[rest])).tolist()
            for at, error in zip(rest, left, strict=True):
                if low < at < high:
                    ends = np.log([one.loads[low][2], one.loads[high][2]])
                    told = np.interp(np.log(one.loads[at][2]), ends, one.measured[[low, high]])
                    look_up.append(abs(np.expm1(told - one.measured[at])))
                    beside.append(abs(np.expm1(-error)))
    return (
        f"median error {np.median(errors):.1%} (physics alone {np.median(physics):.1%}), inside {np.mean(inside):.0%} of"
        f" {len(inside)}; between the points {np.median(beside):.1%}, look-up {np.median(look_up):.1%}"
    )


def likelihood(found: Sequence[Series], numbers: tuple[float, float, float, float]) -> float:
    constant, wandering, length, repeat = numbers
    total = 0.0
    for one in found:
        at = np.log([load[2] for load in one.loads])
        decay = np.exp(-np.abs(at[:, None] - at[None, :]) / length)
        covariance = constant**2 + wandering**2 * decay + repeat**2 * np.eye(len(at))
        root = np.linalg.cholesky(covariance)
        left = np.linalg.solve(root, one.off)
        total += float(-0.5 * left @ left - np.log(np.diag(root)).sum())
    return total


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--models")
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args(argv)
    every = [one for table in arguments.tables for one in series_of(table, arguments.models)]
    for figure in ("tpot", "ttft"):
        found = [one for one in every if one.figure == figure]
        print(
            f"{figure.upper()}: {len(found)} series, {sum(len(one.loads) for one in found)} figures; {anchor_numbers()[figure]}"
        )
        for name, pairs in PAIRS.items():
            print(f"  {name}: {judge(found, pairs)}")
        if arguments.fit:
            grid = itertools.product((0.05, 0.1, 0.2, 0.35), (0.06, 0.1, 0.2, 0.35), (1, 2, 4, 8), (0.005, 0.02, 0.04))
            print(
                f"  most likely (constant, wandering, length, repeat): {max(grid, key=lambda one: likelihood(found, one))}"
            )


if __name__ == "__main__":
    main()
