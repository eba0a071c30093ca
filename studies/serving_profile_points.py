"""What a user's eight measured points are worth: profiles of deployments whose card and engine the terms never saw.

    python studies/serving_profile_points.py TABLE.csv [--models DIR] [--seeds 20] [--points 8]

For each group of one model, precision, card and engine with at least 30 times per output token (tier A): serving terms are
fitted without that card and engine, a profile is fitted to random points of the group, and the median error on the group's
other rows is compared with and without it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from trilemma.errors import InputError
from trilemma.measured.serving.deployment.profile import predicted, profile_offsets
from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.figures import SpeedFigures
from trilemma.measured.serving.speed.fit import fit
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import UnusableRow, read_table
from trilemma.timing.serving_terms import ServingTerms, priors, shipped

FEWEST_ROWS = 30
BAR = 0.08
WORSE = 0.02


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--models")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--points", type=int, default=8)
    arguments = parser.parse_args(argv)
    benches, names = _benches(arguments.table, arguments.models)
    groups = [
        bench.take(bench.quantity == "tpot") for bench in benches if np.sum(bench.quantity == "tpot") >= FEWEST_ROWS
    ]
    good = worse = 0
    terms_without: dict[tuple[str, str], ServingTerms] = {}
    for bench in groups:
        place = (bench.machine.accelerator.id, bench.engine)
        if place not in terms_without:
            rest = [other for other in benches if (other.machine.accelerator.id, other.engine) != place]
            terms_without[place] = fit(rest, priors(), start=shipped(), most_rounds=16)
        before, after = _errors(bench, terms_without[place], seeds=arguments.seeds, points=arguments.points)
        good += after <= BAR
        worse += after > before + WORSE
        print(f"{names[int(bench.at[0])]:<60} {len(bench.at):4d} rows  {before:6.1%} before  {after:6.1%} after")
    print(f"\n{good} of {len(groups)} groups at or below {BAR:.0%}; {worse} made worse by more than {WORSE:.0%}")


def _benches(table: str, models: str | None) -> tuple[list[SpeedFigures], list[str]]:
    questions: list[SpeedQuestion | str] = []
    for row in read_table(table).rows:
        if row.text("tier") == "A":
            try:
                questions.append(read_speed_question(row, models))
            except (UnusableRow, InputError) as error:
                questions.append(str(error))
    names = [
        one if isinstance(one, str) else f"{one.model.name} {one.precision} {one.accelerator.id} {one.engine}"
        for one in questions
    ]
    return benches_of(questions), names


def _errors(bench: SpeedFigures, terms: ServingTerms, *, seeds: int, points: int) -> tuple[float, float]:
    """Median over seeds of the median error on rows not drawn, without and with the profile of those drawn."""
    before, after = [], []
    for seed in range(seeds):
        drawn = np.zeros(len(bench.at), dtype=bool)
        drawn[np.random.default_rng(seed).choice(len(bench.at), size=points, replace=False)] = True
        seen, rest = bench.take(drawn), bench.take(~drawn)
        for errors, offsets in ((before, {}), (after, profile_offsets(seen, terms))):
            errors.append(float(np.median(np.abs(predicted(rest, terms, offsets) / rest.measured - 1.0))))
    return float(np.median(before)), float(np.median(after))


if __name__ == "__main__":
    main()
