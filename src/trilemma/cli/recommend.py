"""``trilemma recommend``: which cards to take for a load or a training job, and how many."""

from __future__ import annotations

import argparse

from trilemma.ask.options import OPTIONS, RECOMMEND
from trilemma.ask.purchase_options import PURCHASE
from trilemma.ask.training_options import TRAINING
from trilemma.cli.arguments import add_model_arguments, add_named, add_options, add_output_arguments, given
from trilemma.cli.output import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_options(parser, RECOMMEND, "workload")
    add_options(parser, RECOMMEND, "engine")
    _add_purchase(parser)


def add_training(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_options(parser, RECOMMEND, "training", table=TRAINING)
    add_options(parser, RECOMMEND, "layout", title="settled by you (default: all are searched)", table=TRAINING)
    _add_purchase(parser)


def _add_purchase(parser: argparse.ArgumentParser) -> None:
    for group in ("cards", "limits"):
        add_options(parser, RECOMMEND, group, table=PURCHASE)
    add_named(parser, RECOMMEND, "top")
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.questions import recommend
    from trilemma.cli.progress import bar

    table = (*(TRAINING if hasattr(arguments, "seq") else OPTIONS), *PURCHASE)
    return tell(recommend(arguments.model, progress=bar, **given(arguments, RECOMMEND, table)), arguments)
