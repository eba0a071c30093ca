"""Do the error bars of a profile hold the runs that it has not seen, and what does it make of the time to the first token?

    python studies/serving_profile_bars.py TABLE.csv [--models DIR] [--seeds 3] [--points 6]

For each group of one model, precision, card, engine and layout with at least nine loads that have both figures (tier A): the
deployment's own offsets are taken out of the shipped terms, a profile is made of random loads, and the other loads are held
against it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from serving_profile_points import _benches

from trilemma.measured.serving.deployment.bench_files import Point
from trilemma.measured.serving.deployment.points import TTFT_TRUST
from trilemma.measured.serving.deployment.profile import calibrate, predicted
from trilemma.measured.serving.speed.figures import SpeedFigures
from trilemma.timing.serving_terms import ServingTerms, shipped

FIGURES = ("tpot", "ttft")
FEWEST_LOADS, FEWEST_FIGURES = 9, 8


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--models")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--points", type=int, default=6)
    arguments = parser.parse_args(argv)
    found: dict[str, list[Any]] = {
        f"{what} {figure}": [] for what in ("before", "after", "inside", "end") for figure in FIGURES
    }
    groups = list(_groups(_benches(arguments.table, arguments.models)[0]))
    for bench in groups:
        for seed in range(arguments.seeds):
            _judge(bench, _without(shipped(), bench), seed=seed, points=arguments.points, found=found)
    print(f"{len(groups)} groups, {arguments.points} loads each, {arguments.seeds} draws")
    for figure in FIGURES:
        inside = found[f"inside {figure}"]
        before, after, end = (float(np.median(found[f"{what} {figure}"])) for what in ("before", "after", "end"))
        print(
            f"{figure.upper()}  median error {before:.1%} before, {after:.1%} after; {np.mean(inside):.0%} of"
            f" {len(inside)} runs inside the bar, its upper end at {end:.2f}"
        )


def _groups(benches: Sequence[SpeedFigures]) -> Iterator[SpeedFigures]:
    for whole in benches:
        bench = whole.take(np.isin(whole.quantity, FIGURES))
        degrees = np.stack([np.asarray(getattr(bench.layout, name)) for name in ("tp", "pp", "dp", "ep")], axis=-1)
        if not len(degrees):
            continue
        layouts, at = np.unique(degrees, axis=0, return_inverse=True)
        bench = bench.take(at.reshape(-1) == np.argmax(np.bincount(at.reshape(-1), minlength=len(layouts))))
        counts = [int(np.sum(bench.quantity == figure)) for figure in FIGURES]
        if len(set(_loads(bench))) >= FEWEST_LOADS and min(counts) >= FEWEST_FIGURES:
            yield replace(bench, trust=np.where(bench.quantity == "ttft", TTFT_TRUST, 1.0))


def _loads(bench: SpeedFigures) -> list[tuple[float, float, float]]:
    return [*zip(bench.isl.tolist(), bench.osl.tolist(), bench.concurrency.tolist(), strict=True)]


def _without(terms: ServingTerms, bench: SpeedFigures) -> ServingTerms:
    own = {key: row for key, row in terms.offsets[-1].items() if key != bench.keys[-1]}
    return replace(terms, offsets=(*terms.offsets[:-1], own))


def _judge(bench: SpeedFigures, terms: ServingTerms, *, seed: int, points: int, found: dict[str, list[Any]]) -> None:
    loads = sorted(set(_loads(bench)))
    drawn = {loads[at] for at in np.random.default_rng(seed).permutation(len(loads))[:points]}
    seen = np.array([load in drawn for load in _loads(bench)])
    measured = bench.take(seen)
    if min(np.sum(measured.quantity == figure) for figure in FIGURES) < 4:
        return
    named = [Point(isl=isl, osl=osl, concurrency=load) for isl, osl, load in sorted(drawn)]
    profile = calibrate(measured, terms, name="study", points=named).profile
    rest = bench.take(~seen)
    said, without = predicted(rest, terms, profile.offsets), predicted(rest, terms, {})
    assert profile.own is not None
    for figure in FIGURES:
        chosen = rest.quantity == figure
        low, high = profile.own.bounds[figure]
        found[f"before {figure}"].append(np.median(np.abs(without / rest.measured - 1)[chosen]))
        found[f"after {figure}"].append(np.median(np.abs(said / rest.measured - 1)[chosen]))
        found[f"end {figure}"].append(high)
        for at in np.flatnonzero(chosen):
            load = {name: float(getattr(rest, name)[at]) for name in ("isl", "osl", "concurrency")}
            if profile.own.holds(profile.own.served, **load):
                found[f"inside {figure}"].append(low <= rest.measured[at] / said[at] <= high)


if __name__ == "__main__":
    main()
