"""``trilemma fit MODEL --train SEQ --global-batch B``: one training plan in full."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import add_cluster_arguments, add_model_arguments, add_output_arguments, read_cluster
from trilemma.cli.charts import add_chart_argument, draw, read_chart
from trilemma.cli.output import show_estimate
from trilemma.cli.training_arguments import (
    add_plan_arguments,
    add_training_arguments,
    read_settled,
    read_training_workload,
    with_host_memory,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    add_training_arguments(parser)
    add_plan_arguments(parser, settled=False)
    add_chart_argument(parser, "time of a step and memory")
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.estimate.training import estimate_training
    from trilemma.models.resolve import load_model
    from trilemma.question import Question
    from trilemma.search.training_remedies import with_training_remedies
    from trilemma.search.training_single import single_training_plan

    chart = read_chart(arguments)
    model = load_model(arguments.model, models_dir=arguments.models)
    cluster, workload = with_host_memory(read_cluster(arguments), arguments), read_training_workload(arguments)
    settled = read_settled(arguments)
    plan = single_training_plan(model, cluster.accelerator, workload, settled, gpus=cluster.gpus)
    answer = estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=plan))
    answer = with_training_remedies(answer, model=model, cluster=cluster, workload=workload, plan=plan)
    if chart is not None:
        from trilemma.report.charts import estimate_chart

        draw(estimate_chart(answer, cluster.accelerator), chart)
    return show_estimate(answer, as_json=arguments.json, explain=arguments.explain)
