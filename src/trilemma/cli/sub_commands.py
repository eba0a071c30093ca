"""Commands of commands: ``trilemma precision WHAT`` and ``trilemma calibrate WHAT`` find WHAT and hand it its own arguments."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Mapping

from trilemma.cli.output import YES, screen_width
from trilemma.errors import UnknownName

#: sub-command → (module, one-line summary). A module is imported only when its sub-command runs and offers
#: ``add_arguments(parser)`` and ``run(arguments) -> exit code``, as the commands of `trilemma.cli.main` do.
SubCommands = Mapping[str, tuple[str, str]]


def add_sub_commands(parser: argparse.ArgumentParser, command: str, known: SubCommands) -> None:
    listed = listed_commands(known)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"sub-commands:\n{listed}\n\nsee trilemma {command} WHAT --help"
    parser.add_argument("what", metavar="WHAT", nargs="?", help="the sub-command")
    parser.add_argument("rest", metavar="…", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(parser=parser)


def listed_commands(known: SubCommands) -> str:
    """A line each, over several where the window is narrow."""
    width = screen_width()
    return "\n".join(
        textwrap.fill(
            summary, width, initial_indent=f"  {name:<14}", subsequent_indent=" " * 16, break_on_hyphens=False
        )
        for name, (_, summary) in known.items()
    )


def run_sub_command(arguments: argparse.Namespace, command: str, known: SubCommands) -> int:
    """Its exit code. Raises `UnknownName` for a sub-command that is not ``known``."""
    if arguments.what is None:
        arguments.parser.print_help()
        return YES
    if arguments.what not in known:
        raise UnknownName("sub-command", arguments.what, known, hint=f"see trilemma {command} --help")
    name, summary = known[arguments.what]
    module = importlib.import_module(name)
    # The parser of the command line turns mistakes into one line and exit code 2; this one must do the same.
    parser = type(arguments.parser)(
        prog=f"trilemma {command} {arguments.what}", description=summary[0].upper() + summary[1:] + "."
    )
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments.rest)))
