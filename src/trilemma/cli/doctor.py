"""``trilemma doctor``: what is wrong with this machine, or with one whose tools' outputs are given."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.cli.arguments import add_output_arguments

    parser.add_argument(
        "outputs",
        metavar="OUTPUT",
        nargs="*",
        help="files or folders with what nvidia-smi, rocm-smi, dmesg, pip freeze, ulimit … printed; - for standard input",
    )
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.examined import doctor
    from trilemma.cli.output import tell

    return tell(doctor(arguments.outputs), arguments)
