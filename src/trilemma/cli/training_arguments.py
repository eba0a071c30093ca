"""Flags of training from their table, and the nouns that commands without a question of their own read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trilemma.ask.options import FIT
from trilemma.ask.training_options import TRAINING
from trilemma.cli.arguments import add_options, given

if TYPE_CHECKING:
    from trilemma.search.training_layouts import TrainingConstraints
    from trilemma.workloads import TrainingWorkload


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, FIT, "training", table=TRAINING)


def add_plan_arguments(parser: argparse.ArgumentParser, *, settled: bool) -> None:
    """Layout and recipe; ``settled`` words them for a search, which varies what is not given."""
    title = "settled by you (default: all are searched)" if settled else None
    add_options(parser, FIT, "layout", title=title, table=TRAINING)


def read_training_workload(arguments: argparse.Namespace) -> TrainingWorkload:
    from trilemma.ask.options import settled
    from trilemma.ask.training import training_workload_of

    return training_workload_of(settled(FIT, given(arguments, FIT, TRAINING), TRAINING))


def read_settled(arguments: argparse.Namespace) -> TrainingConstraints:
    from trilemma.ask.options import settled
    from trilemma.ask.training import settled_of

    return settled_of(settled(FIT, given(arguments, FIT, TRAINING), TRAINING))
