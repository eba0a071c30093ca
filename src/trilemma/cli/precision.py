"""``trilemma precision WHAT``: finds the sub-command and hands it its own arguments."""

from __future__ import annotations

import argparse
import importlib

from trilemma.cli.output import YES
from trilemma.errors import UnknownName

#: sub-command → (module, one-line summary). A module is imported only when its sub-command runs and offers
#: ``add_arguments(parser)`` and ``run(arguments) -> exit code``, as the commands of `trilemma.cli.main` do.
SUB_COMMANDS: dict[str, tuple[str, str]] = {
    "train-lab": ("trilemma.cli.precision_train_lab", "train a tiny model under many recipes: who fails, when, why"),
    "gate": ("trilemma.cli.precision_gate", "are two loss curves equivalent"),
    "recipe": ("trilemma.cli.precision_recipe", "the low-precision recipe that a GPU and a framework support"),
    "plan": ("trilemma.cli.precision_plan", "bits per tensor under a budget"),
    "measure": ("trilemma.cli.precision_measure", "sensitivity of real weights to each format"),
    "allocate": ("trilemma.cli.precision_allocate", "bits per tensor from measured sensitivities"),
    "export": ("trilemma.cli.precision_export", "a plan as files that toolkits and engines accept"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "\n".join(f"  {name:<12}{summary}" for name, (_, summary) in SUB_COMMANDS.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"sub-commands:\n{listed}\n\nsee trilemma precision WHAT --help"
    parser.add_argument("what", metavar="WHAT", nargs="?", help="the sub-command")
    parser.add_argument("rest", metavar="…", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(parser=parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.what is None:
        arguments.parser.print_help()
        return YES
    if arguments.what not in SUB_COMMANDS:
        raise UnknownName("sub-command", arguments.what, SUB_COMMANDS, hint="see trilemma precision --help")
    name, summary = SUB_COMMANDS[arguments.what]
    module = importlib.import_module(name)
    # The parser of the command line turns mistakes into one line and exit code 2; this one must do the same.
    parser = type(arguments.parser)(
        prog=f"trilemma precision {arguments.what}", description=summary[0].upper() + summary[1:] + "."
    )
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments.rest)))
