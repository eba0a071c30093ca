"""``trilemma simulate serving``: one plan under traffic that is replayed or drawn."""

from __future__ import annotations

import argparse

from trilemma.ask.simulation_options import SIMULATE, SIMULATION
from trilemma.cli.arguments import Once, add_options, add_output_arguments, given
from trilemma.cli.charts import add_chart_argument, read_chart
from trilemma.cli.output import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name, hub id, config.json, folder or weights file")
    parser.add_argument(
        "--gpu", metavar="G[:N]", required=True, action=Once, help="accelerator and how many, such as h200-sxm:8"
    )
    add_options(parser, SIMULATE, table=SIMULATION)
    for group in ("traffic", "scheduling", "GPUs", "layout", "several engines", "workload", "engine"):
        add_options(parser, SIMULATE, group, table=SIMULATION)
    add_chart_argument(parser, "distributions, queue and cache over time, and latency against load")
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.simulate import simulate

    chart = read_chart(arguments)
    found = simulate(arguments.model, arguments.gpu, **given(arguments, SIMULATE, SIMULATION))
    return tell(found, arguments, chart=chart)
