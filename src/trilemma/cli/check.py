"""``trilemma check``: an engine's own command, judged before it runs, or against the log of its start."""

from __future__ import annotations

import argparse

from trilemma.ask.options import CHECK
from trilemma.cli.arguments import (
    add_command_arguments,
    add_named,
    add_options,
    add_output_arguments,
    command_words,
    given,
)
from trilemma.cli.output import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trilemma check [--gpu G[:N]] [--free-gib X] [--log FILE] [options] -- ENGINE COMMAND…"
    parser.add_argument(
        "--gpu",
        metavar="G[:N]",
        help="the cards it runs on, such as h100-sxm:8 (N defaults to the command's) or rtx-4090+rtx-3090; auto: this machine's",
    )
    add_named(
        parser,
        CHECK,
        "host",
        "network",
        "oversubscription",
        "free_gib",
        "log",
        "host_memory",
        "pool",
        "models",
        "profile",
    )
    add_options(parser, CHECK, "workload", title="load (default: one that the command is judged under alone)")
    add_named(parser, CHECK, "draft")
    add_output_arguments(parser, page=True)
    add_command_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.questions import check

    from_log = arguments.log is not None and arguments.words in ([], ["--"])
    words = [] if from_log else command_words(arguments, "trilemma check --gpu h100-sxm:8 -- vllm serve MODEL")
    return tell(check(words, arguments.gpu, **given(arguments, CHECK)), arguments)
