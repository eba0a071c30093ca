"""``trilemma diff``: what a change of a command or manifest changes, as Markdown for the review of it."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from trilemma.ask.options import CHECK
from trilemma.cli.arguments import add_named, given
from trilemma.cli.output import NO, YES
from trilemma.errors import InputError

_ENDINGS = (".yaml", ".yml", ".sh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trilemma diff [--gpu G[:N]] BEFORE AFTER | --rev REVISION FILE…"
    parser.add_argument(
        "what", nargs="+", metavar="COMMAND|FILE",
        help="two commands (in quotes), manifests or scripts; with --rev the files or folders of a git checkout",
    )  # fmt: skip
    parser.add_argument("--rev", metavar="REVISION", help="before is what stood at this revision of git")
    parser.add_argument("--gpu", metavar="G[:N]", help="the cards, where the labels of a manifest name none")
    parser.add_argument(
        "--least", metavar="SHARE", default="1%", help="figures that moved by less are not told (default 1%%)"
    )
    parser.add_argument(
        "--worse", metavar="[FIGURE=]SHARE", action="append", default=[],
        help="exit 1 where a figure is worse by more: 5%% (any), tpot_ms=5%% (repeatable)",
    )  # fmt: skip
    add_named(parser, CHECK, "isl", "osl", "concurrency", "rate", "models", "profile", "free_gib")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """0 where the change may go on (and nothing printed where nothing changed), 1 where something stops starting or is worse."""
    from trilemma.ask.differing import diff, known_cards, together
    from trilemma.cli.revisions import pairs_at

    options = {
        **given(arguments, CHECK), "gpu": known_cards(arguments.gpu), "least": _share(arguments.least, "--least"),
        "worse": dict(_limit(one) for one in arguments.worse),
    }  # fmt: skip
    if arguments.rev is None:
        if len(arguments.what) != 2:
            raise InputError(f"{len(arguments.what)} given; give two, before and after, or --rev REVISION FILE…")
        changes = diff(*(_named(one) for one in arguments.what), **options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            pairs = pairs_at(arguments.rev, arguments.what, endings=_ENDINGS, folder=Path(folder))
            parts = [diff(before, after, name=name, **options) for name, before, after in pairs]
        changes = together(parts)
    if arguments.json:
        print(changes.to_json())
    elif changes.commands:
        print(changes.show())
    return YES if changes.fits else NO


def _named(word: str) -> str | Path:
    """A file, where it is one that can hold a command."""
    if word.endswith(_ENDINGS) and not any(map(str.isspace, word)):
        if not Path(word).is_file():
            raise InputError(f"{word} is no file; give a command in quotes, a manifest or a script")
        return Path(word)
    return word


def _limit(text: str) -> tuple[str, float]:
    from trilemma.estimate.differences import FIGURES

    name, _, share = text.rpartition("=")
    if name and name not in FIGURES:
        raise InputError(f"--worse {text}: {name!r} is no figure; use one of {', '.join(FIGURES)}")
    return name, _share(share, "--worse")


def _share(text: str, flag: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise InputError(f"{flag} {text!r} is no share, such as 5% or 0.05")
    return value
