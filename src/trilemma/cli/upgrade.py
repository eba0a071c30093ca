"""``trilemma upgrade``: what a newer (or older) version of the engine changes for one command."""

from __future__ import annotations

import argparse

from trilemma.ask.options import UPGRADE
from trilemma.cli.arguments import add_command_arguments, add_named, command_words, given
from trilemma.cli.output import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trilemma upgrade --from V1 --to V2 --gpu G[:N] [options] -- ENGINE COMMAND…"
    parser.add_argument("--from", dest="old", required=True, metavar="V1", help="the version that runs today")
    parser.add_argument("--to", dest="new", required=True, metavar="V2", help="the version to go to")
    parser.add_argument("--gpu", metavar="G[:N]", help="the cards it runs on, such as h100-sxm:8")
    add_named(parser, UPGRADE, "free_gib", "models")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    add_command_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 when the command goes on as it stands, 1 when a flag is refused or the plan does not start."""
    from trilemma.ask.questions import upgrade

    words = command_words(arguments, "trilemma upgrade --from 0.19 --to 0.21 -- vllm serve MODEL")
    return tell(upgrade(words, arguments.gpu, **given(arguments, UPGRADE)), arguments)
