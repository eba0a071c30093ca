"""``trilemma settle RESULTS``: what was predicted against what the benchmark found, and the profile brought up to date."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import add_models_dir
from trilemma.cli.output import screen_width, show
from trilemma.quantities import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", nargs="+", help="result files of the benchmark")
    parser.add_argument(
        "--prediction",
        default="prediction.json",
        metavar="FILE",
        help="what export wrote (default: prediction.json here)",
    )
    parser.add_argument("--name", metavar="NAME", help="profile to update (default: named after engine and card)")
    add_models_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """Prints the scores; exit 0 where every figure of the predicted load lies inside its bounds, 1 where one lies outside, 2
    where no run is of that load."""
    import sys
    from dataclasses import asdict

    from trilemma.measured.serving.deployment.bench_files import read_points
    from trilemma.measured.serving.deployment.prediction import read_prediction
    from trilemma.measured.serving.deployment.profile import save
    from trilemma.measured.serving.deployment.settle import load_of, settle
    from trilemma.report.document import dumps
    from trilemma.report.tables import render_table
    from trilemma.timing import serving_terms

    prediction = read_prediction(arguments.prediction)
    points = read_points(arguments.results)
    name = arguments.name or f"{prediction.plan.engine.name}-{prediction.accelerator}".lower()[:64]
    found = settle(prediction, points, name=name, terms=serving_terms.shipped(), models_dir=arguments.models)
    path = save(found.profile) if found.profile is not None else None
    if arguments.json:
        rows = [asdict(score) | {"error": score.error, "inside": score.inside} for score in found.scores]
        kept = {} if path is None else {"profile": str(path)}
        print(dumps({"schema": "trilemma/settlement@1", "scores": rows, **kept, "fitted": found.fitted}))
    else:
        cells = [
            [
                score.figure, f"{score.isl:.0f}/{score.osl:.0f}", f"{score.concurrency:.0f}", f"{score.predicted:.4g}",
                f"{score.measured:.4g}", f"{score.error:+.1%}", {True: "yes", False: "no", None: "-"}[score.inside],
            ]
            for score in found.scores
        ]  # fmt: skip
        headers = ["figure", "lengths", "at once", "predicted", "measured", "error", "inside 90 %"]
        show(render_table(headers, cells, align="llrrrrl", width=screen_width()))
        state = "fitted to all of them" if found.fitted else "kept for later: too few loads, or no better than before"
        if found.profile is None:
            print("\nno profile: one is of a single engine, and these are pools apart")
        else:
            print(f"\nprofile {name}: {counted(len(found.profile.points), 'run')}, {state} ({path})")
        for why in dict.fromkeys(score.unjudged for score in found.scores if score.unjudged is not None):
            print(f"- not judged: {why}")
    if all(score.inside is None for score in found.scores):
        print(
            f"trilemma: no run is of the load predicted ({load_of(prediction)}), so none was judged; run benchmark.sh beside"
            " the prediction",
            file=sys.stderr,
        )
        return 2
    return 1 if any(score.inside is False for score in found.scores) else 0
