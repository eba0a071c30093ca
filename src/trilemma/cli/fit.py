"""``trilemma fit``: one plan in full, of serving or, with ``--train``, of training."""

from __future__ import annotations

import argparse

from trilemma.ask.options import FIT
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
    add_cluster_arguments(parser, host=True)
    for group in ("layout", "several engines", "workload", "engine"):
        add_options(parser, FIT, group)
    add_named(parser, FIT, "power_cap", "storage", "free_gib", "profile", "runs")
    add_chart_argument(parser, "roofline, time per token and memory")
    add_output_arguments(parser, page=True)


def add_training(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    add_training_arguments(parser)
    add_plan_arguments(parser, settled=False)
    add_named(parser, FIT, "power_cap")
    add_chart_argument(parser, "time of a step and memory")
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.questions import fit

    chart = read_chart(arguments)
    options = given(arguments, FIT, TRAINING) if hasattr(arguments, "seq") else given(arguments, FIT)
    return tell(fit(arguments.model, arguments.gpu, **options), arguments, chart=chart)
