"""``trilemma fit``: one plan in full."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_engine_arguments,
    add_free_argument,
    add_layout_arguments,
    add_model_arguments,
    add_output_arguments,
    add_profile_argument,
    add_workload_arguments,
    read_cluster,
    read_weights,
    read_workload,
)
from trilemma.cli.charts import add_chart_argument, draw, read_chart
from trilemma.cli.output import show_estimate
from trilemma.cli.pools_arguments import add_pools_arguments, read_engines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser, host=True)
    add_layout_arguments(parser)
    add_pools_arguments(parser)
    add_workload_arguments(parser)
    add_engine_arguments(parser)
    add_free_argument(parser)
    add_profile_argument(parser)
    add_chart_argument(parser, "roofline, time per token and memory")
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.estimate.serving import estimate
    from trilemma.quantities import GIB
    from trilemma.search.answer import with_remedies

    chart = read_chart(arguments)
    cluster = read_cluster(arguments, mixed=True)
    weights = read_weights(arguments, cluster.accelerator)
    workload = read_workload(arguments)
    plan, cluster = read_engines(arguments, cluster, context=workload.longest_request, quantization=weights.on_load)
    free_bytes = None if arguments.free_gib is None else arguments.free_gib * GIB
    answer = with_remedies(
        estimate(weights.asked(cluster=cluster, workload=workload, plan=plan, free_bytes=free_bytes))
    )
    if chart is not None:
        from trilemma.report.charts import estimate_chart

        draw(estimate_chart(answer, cluster.accelerator), chart)
    return show_estimate(answer, as_json=arguments.json, explain=arguments.explain)
