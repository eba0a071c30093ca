"""``trilemma compare``: GPUs side by side for one job, at equal latency."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_model_arguments,
    add_output_arguments,
    number,
    read_cluster,
    whole_number,
)
from trilemma.cli.charts import add_chart_argument, draw, read_chart
from trilemma.cli.output import NO, YES, screen_width
from trilemma.cli.plan import engine_of, names_of, workload_of
from trilemma.errors import InputError
from trilemma.versions import DEFAULT_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser, several=True)
    load = parser.add_argument_group("workload")
    load.add_argument(
        "--serve", metavar="ISL/OSL", default="1024/1024", help="prompt and output tokens (default 1024/1024)"
    )
    load.add_argument("--concurrency", type=whole_number, metavar="C", help="requests running at once, over all GPUs")
    load.add_argument("--rate", type=number, metavar="PER_S", help="requests arriving per second")
    load.add_argument(
        "--context", type=whole_number, metavar="TOKENS", help="longest request to admit (default ISL + OSL)"
    )
    load.add_argument(
        "--prefix-hit", type=number, default=0.0, metavar="SHARE", help="share of prompt tokens found in cache"
    )
    load.add_argument("--ttft", type=number, metavar="MS", help="target: time to first token")
    load.add_argument("--tpot", type=number, metavar="MS", help="target: time per output token")
    parser.add_argument(
        "--precision", metavar="SCHEME[,…]", help="precisions of the second plan (default: all that suit the card)"
    )
    parser.add_argument("--kv-dtype", metavar="FORMAT[,…]", help="cache formats of the second plan")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, metavar="NAME[@VERSION]", help="engine and version")
    add_chart_argument(parser, "throughput, price and latency of each")
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.models.resolve import load_model
    from trilemma.search.compare import compare

    if len(arguments.gpu) > 16:
        raise InputError(f"{len(arguments.gpu)} --gpu are too many to compare; give at most 16")
    chart = read_chart(arguments)
    model = load_model(arguments.model, models_dir=arguments.models)
    comparison = compare(
        model,
        [read_cluster(arguments, gpu) for gpu in arguments.gpu],
        workload_of(arguments),
        precision=names_of(arguments.precision, "--precision"),
        kv_dtype=names_of(arguments.kv_dtype, "--kv-dtype"),
        engine=engine_of(arguments),
    )
    if chart is not None:
        from trilemma.report.charts import comparison_chart

        draw(comparison_chart(comparison, model=model.name), chart)
    if arguments.json:
        from trilemma.report.comparison import comparison_document
        from trilemma.report.document import dumps

        print(dumps(comparison_document(comparison, model=model.name, explain=arguments.explain)))
    else:
        from trilemma.report.comparison import render_comparison

        print(render_comparison(comparison, model=model.name, width=screen_width()))
    return YES if any(candidate.best_meets for candidate in comparison.candidates) else NO
