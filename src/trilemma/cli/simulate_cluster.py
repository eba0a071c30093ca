"""``trilemma simulate cluster``: a shared cluster over time, under the policies of real schedulers."""

from __future__ import annotations

import argparse

from trilemma.ask.cluster_options import CLUSTER, CLUSTER_OPTIONS
from trilemma.cli.arguments import add_options, add_output_arguments, given
from trilemma.cli.charts import add_chart_argument, read_chart
from trilemma.cli.output import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for group in ("cluster", "jobs", "scheduling"):
        add_options(parser, CLUSTER, group, table=CLUSTER_OPTIONS)
    add_chart_argument(parser, "the use of the cluster over space and time, and what waits,")
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.simulate_cluster import simulate_cluster

    chart = read_chart(arguments)
    found = simulate_cluster(**given(arguments, CLUSTER, CLUSTER_OPTIONS))
    return tell(found, arguments, chart=chart)
