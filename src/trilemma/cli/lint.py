"""``trilemma lint FILE…``: what is wrong with scripts, configurations and commands before they run."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.cli.arguments import add_output_arguments

    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="Python scripts, notebooks, YAML, JSON, TOML, manifests, shell scripts, folders of them; - for standard input",
    )
    parser.add_argument(
        "--gpu", metavar="G", help="the card that it is to run on, which judges recipes too; auto: this one"
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.linted import lint
    from trilemma.cli.output import tell

    return tell(lint(arguments.files, gpu=arguments.gpu), arguments)
