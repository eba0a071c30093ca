"""``trilemma diagnose FILE…``: what logs, traces, dumps and telemetry say is wrong, why, and what mends it."""

from __future__ import annotations

import argparse

from trilemma.ask.options import CHECK

_OPTIONS = ("network", "oversubscription", "host", "host_memory", "free_gib", "models", "profile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.cli.arguments import add_named, add_options, add_output_arguments

    parser.usage = "trilemma diagnose FILE… [--gpu G[:N]] [options] [-- COMMAND…]"
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="logs, traces, dumps, telemetry, plain or gzip, of any kind together; folders; - for standard input",
    )
    parser.add_argument("--gpu", metavar="G[:N]", help="the cards of the run (default: those that the files name)")
    add_named(parser, CHECK, *_OPTIONS)
    add_options(parser, CHECK, "workload", title="load (default: what the log shows)")
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.diagnosed import diagnose
    from trilemma.cli.arguments import given
    from trilemma.cli.output import tell

    found = diagnose(arguments.files, arguments.behind, arguments.gpu, **given(arguments, CHECK))
    tell(found, arguments)
    return found.exit_code
