"""``trilemma completion bash|zsh|fish``: a script with which the shell completes commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trilemma.cli.output import YES

SHELLS = ("bash", "zsh", "fish")
#: Commands whose operands are names of a catalogue.
_OPERANDS = {"hardware": "gpu", "formats": "format", "models": "model"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletedOption:
    """One option: its flags, what it says of itself, and what its value is: a kind of ``values``, words to choose from, or a
    word of the user's (empty); None where it takes none."""

    flags: tuple[str, ...]
    help: str
    value: str | None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletedCommand:
    """A command or sub-command by the words that name it, with its options; ``operand`` is a kind of ``values`` or "file",
    ``choices`` are its sub-commands or the words that stand there."""

    words: tuple[str, ...]
    summary: str
    options: tuple[CompletedOption, ...] = ()
    operand: str = "file"
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """All that a shell completes: the commands, and the names of each kind."""

    commands: tuple[CompletedCommand, ...]
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to write the script for")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.cli import completion_scripts

    write = {"bash": completion_scripts.bash, "zsh": completion_scripts.zsh, "fish": completion_scripts.fish}
    print(write[arguments.shell](completion()), end="")
    return YES


def completion() -> Completion:
    """What the parsers of all commands take."""
    from trilemma.engines import readable
    from trilemma.formats import catalogue as formats
    from trilemma.hardware.catalogue import ids
    from trilemma.models.catalogue import names

    short = [one.partition("-")[2] for one in ids()]  # a card needs no maker
    values = {"gpu": (*ids(), *short), "model": names(), "engine": tuple(readable()), "format": formats.names()}
    return Completion(commands=tuple(_commands()), values=values)


def _commands() -> Iterator[CompletedCommand]:
    import importlib

    from trilemma.cli.main import COMMANDS, TRAINING, Parser, build_parser

    for name, (module, summary) in COMMANDS.items():
        below = getattr(importlib.import_module(module), "SUB_COMMANDS", {})
        options = _options(*(_of(build_parser(name, training=one), name) for one in (False, name in TRAINING)))
        operand = _OPERANDS.get(name, "file")
        operands = [action for action in _of(build_parser(name), name)._actions if not action.option_strings]
        takes_model = any(action.dest == "model" for action in operands)
        stated = tuple(str(one) for action in operands for one in action.choices or ())
        yield CompletedCommand(
            words=(name,), summary=summary, options=options, operand="model" if takes_model else operand,
            choices=tuple(below) or stated,
        )  # fmt: skip
        for word, (inner, said) in below.items():
            parser = Parser(prog=f"trilemma {name} {word}")
            importlib.import_module(inner).add_arguments(parser)
            takes_model = any(action.dest == "model" for action in parser._actions)
            yield CompletedCommand(
                words=(name, word), summary=said, options=_options(parser), operand="model" if takes_model else "file"
            )


def _of(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """The parser of the command ``name``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices[name]
            return found
    return parser


def _options(*parsers: argparse.ArgumentParser) -> tuple[CompletedOption, ...]:
    """The options of the forms of one command, each once."""
    found: dict[str, CompletedOption] = {}
    for parser in parsers:
        for action in parser._actions:
            flags = tuple(flag for flag in action.option_strings if flag.startswith("--"))
            if flags and flags[0] not in found:
                found[flags[0]] = CompletedOption(
                    flags=flags,
                    help=_first_line(action),
                    value=_value(action),
                    choices=tuple(map(str, action.choices or ())),
                )
    return tuple(found.values())


def _first_line(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return text.partition(" (default")[0].partition(";")[0][:60]


def _value(action: argparse.Action) -> str | None:
    if action.nargs == 0:
        return None
    if action.dest in ("gpu", "model", "engine"):
        return action.dest
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return "file" if metavar in ("FILE", "DIR", "FOLDER", "PATH") or action.dest in ("output", "models") else ""
