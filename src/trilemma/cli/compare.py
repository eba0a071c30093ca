"""``trilemma compare``: GPUs side by side for one job, at equal latency; with ``--train``, for a training job."""

from __future__ import annotations

import argparse

from trilemma.ask.options import COMPARE, PLAN
from trilemma.ask.training_options import TRAINING
from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_model_arguments,
    add_named,
    add_options,
    add_output_arguments,
    given,
)
from trilemma.cli.charts import add_chart_argument, read_chart
from trilemma.cli.output import tell
from trilemma.cli.training_arguments import add_plan_arguments, add_training_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser, several=True)
    add_named(parser, COMPARE, "power_cap")
    add_options(parser, COMPARE, "workload")
    add_options(parser, COMPARE, "engine")
    add_chart_argument(parser, "throughput, price and latency of each")
    add_output_arguments(parser, page=True)


def add_training(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser, several=True)
    add_training_arguments(parser)
    add_plan_arguments(parser, settled=True)
    add_named(parser, PLAN, "power_cap")
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.questions import compare

    if hasattr(arguments, "seq"):
        return tell(compare(arguments.model, arguments.gpu, **given(arguments, PLAN, TRAINING)), arguments)
    chart = read_chart(arguments)
    return tell(compare(arguments.model, arguments.gpu, **given(arguments, COMPARE)), arguments, chart=chart)
