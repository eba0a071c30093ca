"""``trilemma facility``: what a plan, or so many cards, ask of a building, and what they cost there."""

from __future__ import annotations

import argparse

from trilemma.ask.facility_options import FACILITY, FACILITY_OPTIONS
from trilemma.cli.arguments import add_options, add_output_arguments, given
from trilemma.cli.output import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="G[:N]|FILE.json", help="cards, such as h100-sxm:64, or what fit or plan printed with --json"
    )
    for group in ("load", "building", "grid", "heat", "money"):
        add_options(parser, FACILITY, group, table=FACILITY_OPTIONS)
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.facility import facility

    return tell(facility(arguments.what, **given(arguments, FACILITY, FACILITY_OPTIONS)), arguments)
