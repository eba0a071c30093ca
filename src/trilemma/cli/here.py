"""``trilemma here``: what is in this machine, which models run on it, with which engine, how fast, one command each."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.cli.arguments import add_models_dir, add_output_arguments

    parser.add_argument(
        "outputs",
        metavar="OUTPUT",
        nargs="*",
        help="files with what nvidia-smi, rocm-smi, amd-smi, sysctl or collect_env.py printed on another machine",
    )
    add_models_dir(parser)
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.here import here
    from trilemma.cli.output import YES, tell

    tell(here(arguments.outputs, models=arguments.models), arguments)
    return YES
