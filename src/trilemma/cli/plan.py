"""``trilemma plan``: search all layouts, precisions and loads for the best plans; with ``--train``, those of training."""

from __future__ import annotations

import argparse

from trilemma.ask.options import PLAN, options_of
from trilemma.ask.training_options import TRAINING
from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_model_arguments,
    add_named,
    add_option,
    add_options,
    add_output_arguments,
    given,
)
from trilemma.cli.charts import add_chart_argument, read_chart
from trilemma.cli.output import tell
from trilemma.cli.training_arguments import add_plan_arguments, add_training_arguments
from trilemma.errors import InputError

_SETTLED = "settled by you (default: all are searched)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    add_options(parser, PLAN, "workload")
    add_options(parser, PLAN, "layout", title=_SETTLED)
    add_options(parser, PLAN, "engine")
    add_named(parser, PLAN, "power_cap", "top", "profile")
    add_chart_argument(parser, "the Pareto front with the plans shown")
    add_output_arguments(parser, page=True)


def add_training(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    add_training_arguments(parser)
    add_plan_arguments(parser, settled=True)
    add_option(parser, options_of(PLAN, TRAINING)["scale"])
    add_named(parser, PLAN, "power_cap", "top")
    add_chart_argument(parser, "the way to the best plan, its time and memory")
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.questions import plan, train

    chart = read_chart(arguments)
    if hasattr(arguments, "seq"):
        return tell(train(arguments.model, arguments.gpu, **given(arguments, PLAN, TRAINING)), arguments, chart=chart)
    # The screen shows the front in brief: plans of it in full are for the document.
    front = {} if arguments.json else {"front": 0}
    options = given(arguments, PLAN) | front
    if options.get("serve") is None and options.get("trace") is None:
        raise InputError(
            "`serve` is missing; give prompt and output tokens such as 4096/1024, a `trace` of requests,"
            " or `train` SEQ for training"
        )
    return tell(plan(arguments.model, arguments.gpu, **options), arguments, chart=chart)
