"""``trilemma calibrate serving MEASURED``: a few benchmark runs of one deployment into a profile of its engine."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_engine_arguments,
    add_layout_arguments,
    add_models_dir,
    read_cluster,
    read_plan,
    read_weights,
    whole_number,
)

_YES, _NO = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "measured",
        metavar="MEASURED",
        nargs="+",
        help="results of vllm bench serve, sglang.bench_serving, GuideLLM or AIPerf, or CSV (isl, osl, concurrency, ttft_ms,"
        " tpot_ms); at least 5 loads in all",
    )
    parser.add_argument("--model", required=True, metavar="MODEL", help="what was served")
    add_models_dir(parser)
    add_cluster_arguments(parser)
    add_layout_arguments(parser)
    add_engine_arguments(parser)
    parser.add_argument("--context", type=whole_number, metavar="TOKENS", help="longest request that was admitted")
    parser.add_argument("--name", required=True, metavar="NAME", help="name of the profile, for --profile NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """Saves the profile where points left out are predicted better with it; else says so and exits 1."""
    from trilemma.calibrate import serving_profile
    from trilemma.calibrate.bench_files import read_points
    from trilemma.calibrate.serving_points import bench_of
    from trilemma.report.document import dumps
    from trilemma.timing import serving_terms

    serving_profile.check_name(arguments.name)
    points = read_points(arguments.measured)
    cluster = read_cluster(arguments)
    weights = read_weights(arguments, cluster.accelerator)
    longest = max((int(point.isl + point.osl) for point in points), default=None)
    context = arguments.context or longest
    plan = read_plan(arguments, gpus=cluster.gpus, context=context, quantization=weights.on_load)
    bench = bench_of(points, model=weights.model, cluster=cluster, plan=plan)
    found = serving_profile.calibrate(bench, serving_terms.shipped(), name=arguments.name, points=points)
    profile = found.profile
    path = serving_profile.save(profile) if found.better else None
    if arguments.json:
        document = {
            "schema": serving_profile.SCHEMA, "name": profile.name, "deployment": profile.key, "points": len(points),
            "median_error_before": profile.before, "median_error_after": profile.after, "saved": str(path) if path else None,
        }  # fmt: skip
        print(dumps(document))
        return _YES if found.better else _NO
    print(
        f"{len(points)} points of {profile.key}\nmedian error on points left out: {profile.before:.1%} before,"
        f" {profile.after:.1%} after"
    )
    print(
        f"saved as {path}; use it with --profile {profile.name}" if path else "not saved: it would not predict better"
    )
    return _YES if found.better else _NO
