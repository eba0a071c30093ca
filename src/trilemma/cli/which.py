"""``trilemma which``: every model of the catalogue that runs on given cards, the largest first, with context and speed."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.ask.reading import free_gib
    from trilemma.cli.arguments import Once, add_models_dir, add_output_arguments, flag_type

    parser.add_argument(
        "--gpu", metavar="G[:N]", action=Once, help="cards, such as rtx-4090:2 (default: those of this machine)"
    )
    parser.add_argument(
        "--host-memory", metavar="GIB", type=flag_type(free_gib),
        help="memory beside the cards of --gpu, for models of which a part lies there (default: none; seen on this machine)",
    )  # fmt: skip
    add_models_dir(parser)
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.here import which
    from trilemma.cli.output import tell
    from trilemma.cli.progress import bar

    found = which(arguments.gpu, models=arguments.models, host_memory=arguments.host_memory, progress=bar)
    return tell(found, arguments)
