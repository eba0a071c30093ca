"""``trilemma calibrate serving MEASURED``: a few benchmark runs of one deployment into a profile of its engine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from trilemma.measured.serving.deployment.profile import Profile

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
    from trilemma.measured.serving.deployment import profile as serving_profile
    from trilemma.measured.serving.deployment.anchors import anchors_of
    from trilemma.measured.serving.deployment.bench_files import read_points
    from trilemma.measured.serving.deployment.points import bench_of
    from trilemma.quantities import counted
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
    anchors = anchors_of(points, model=weights.model, cluster=cluster, plan=plan, terms=serving_terms.shipped())
    further = anchors.next_load()
    path = serving_profile.save(profile) if found.better else None
    if arguments.json:
        document = {
            "schema": serving_profile.SCHEMA, "name": profile.name, "deployment": profile.key, "points": len(points),
            "measure_next": None if further is None else dict(zip(("isl", "osl", "concurrency"), further.load, strict=True)),
            "median_error_before": profile.before, "median_error_after": profile.after, "saved": str(path) if path else None,
            "figures": {
                f"{figure}_ms": {"median_error_before": before, "median_error_after": after, "error_bar": _bar(profile, figure)}
                for figure, (before, after) in found.errors.items()
            },
        }  # fmt: skip
        print(dumps(document))
        return _YES if found.better else _NO
    print(f"{counted(len(points), 'point')} of {profile.key}\nmedian error on points left out, before and after")
    for figure, (before, after) in found.errors.items():
        bar = _bar(profile, figure)
        words = (
            "one point gives no error bar"
            if bar is None
            else f"90 % of a measured figure over ours: {bar[0]:.2f} – {bar[1]:.2f}"
        )
        print(f"  {figure.upper():<6}{before:7.1%} {after:7.1%}   {words}")
    print(f"  {'both':<6}{profile.before:7.1%} {profile.after:7.1%}")
    if further is not None:
        print(f"  {further}")
    print(
        f"saved as {path}; use it with --profile {profile.name}" if path else "not saved: it would not predict better"
    )
    return _YES if found.better else _NO


def _bar(profile: Profile, figure: str) -> tuple[float, float] | None:
    return profile.own.bounds.get(figure) if profile.own is not None else None
