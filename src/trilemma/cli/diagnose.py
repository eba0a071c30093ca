"""``trilemma diagnose FILE…``: what logs, traces, dumps and telemetry say is wrong, why, and what mends it."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.cli.arguments import add_output_arguments

    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="logs, traces, dumps, telemetry, plain or gzip, of any kind together; folders; - for standard input",
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.diagnosed import diagnose
    from trilemma.cli.output import tell

    found = diagnose(arguments.files)
    tell(found, arguments)
    return found.exit_code
