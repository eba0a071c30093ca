"""``trilemma calibrate WHAT``: finds the sub-command and hands it its own arguments."""

from __future__ import annotations

import argparse
import importlib

from trilemma.cli.output import YES
from trilemma.errors import UnknownName

#: sub-command → (module, one-line summary). A module is imported only when its sub-command runs and offers
#: ``add_arguments(parser)`` and ``run(arguments) -> exit code``, as the commands of `trilemma.cli.main` do.
SUB_COMMANDS: dict[str, tuple[str, str]] = {
    "kernels": ("trilemma.cli.calibrate_kernels", "kernel coefficients from published tables of operator latencies"),
    "serving": ("trilemma.cli.calibrate_serving", "a few benchmark runs of one deployment into a named profile"),
    "serving-table": ("trilemma.cli.calibrate_serving_table", "fit the shipped terms of serving to a measured table"),
    "training": ("trilemma.cli.calibrate_training", "fit the coefficients of training time to a measured table"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "\n".join(f"  {name:<12}{summary}" for name, (_, summary) in SUB_COMMANDS.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"sub-commands:\n{listed}\n\nsee trilemma calibrate WHAT --help"
    parser.add_argument("what", metavar="WHAT", nargs="?", help="the sub-command")
    parser.add_argument("rest", metavar="…", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(parser=parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.what is None:
        arguments.parser.print_help()
        return YES
    if arguments.what not in SUB_COMMANDS:
        raise UnknownName("sub-command", arguments.what, SUB_COMMANDS, hint="see trilemma calibrate --help")
    name, summary = SUB_COMMANDS[arguments.what]
    module = importlib.import_module(name)
    # The parser of the command line turns mistakes into one line and exit code 2; this one must do the same.
    parser = type(arguments.parser)(
        prog=f"trilemma calibrate {arguments.what}", description=summary[0].upper() + summary[1:] + "."
    )
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments.rest)))
