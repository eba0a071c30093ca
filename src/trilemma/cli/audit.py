"""``trilemma audit``: the efficiency checklist over a plan and whatever is given of its run."""

from __future__ import annotations

import argparse

from trilemma.ask.options import CHECK

_OPTIONS = ("network", "oversubscription", "host", "host_memory", "models", "profile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trilemma.cli.arguments import add_named, add_output_arguments, number

    parser.usage = "trilemma audit [FILE…] [--gpu G[:N]] [options] [-- COMMAND…]"
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="what is known of the run: logs, nccl-tests, outputs of nvidia-smi, documents of precision gate; folders",
    )
    parser.add_argument("--gpu", metavar="G[:N]", help="the cards that the command runs on, such as h100-sxm:64")
    group = parser.add_argument_group("what was measured or is set")
    for flag, metavar, text in (
        ("--tokens-per-s", "RATE", "tokens a second over all GPUs"),
        ("--loader", "RATE", "samples a second of the data loader alone"),
        ("--checkpoint-minutes", "MIN", "minutes between checkpoints (default: what the command's flags say)"),
        ("--storage", "BYTES_PER_S", "bytes a second that one GPU has of the storage (default 5e8)"),
    ):
        group.add_argument(flag, metavar=metavar, type=number, help=text)
    group.add_argument("--checkpoint-async", action=argparse.BooleanOptionalAction, default=None,
                       help="whether checkpoints are written while training goes on")  # fmt: skip
    add_named(parser, CHECK, *_OPTIONS)
    add_output_arguments(parser, page=True)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.audited import audit
    from trilemma.cli.arguments import given
    from trilemma.cli.output import tell

    found = audit(
        arguments.files,
        arguments.behind,
        arguments.gpu,
        tokens_per_s=arguments.tokens_per_s,
        loader=arguments.loader,
        checkpoint_minutes=arguments.checkpoint_minutes,
        checkpoint_async=arguments.checkpoint_async,
        storage=arguments.storage,
        **given(arguments, CHECK),
    )
    return tell(found, arguments)
