"""``trilemma which``: every model of the catalogue that runs on given cards, the largest first, with context and speed."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.cli.arguments import Once, add_models_dir, add_output_arguments

    parser.add_argument(
        "--gpu", metavar="G[:N]", action=Once, help="cards, such as rtx-4090:2 (default: those of this machine)"
    )
    add_models_dir(parser)
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.here import here
    from trilemma.cli.output import tell

    return tell(here(gpu=arguments.gpu, every=True, models=arguments.models), arguments)
