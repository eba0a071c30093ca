"""``trilemma measure``: kernels, wires and disk of this machine into an accelerator file; ``measure WHAT`` for the rest."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from trilemma.cli.arguments import whole_number
from trilemma.cli.output import YES, screen_width, show
from trilemma.cli.sub_commands import listed_commands
from trilemma.errors import InputError, UnknownName, shorten
from trilemma.outside_files import written

SUB_COMMANDS: dict[str, tuple[str, str]] = {
    "activations": (
        "trilemma.cli.measure_activations",
        "bytes autograd saves in one forward pass: counted on a small real model, and predicted (extra: torch)",
    ),
    "pilot": (
        "trilemma.cli.measure_pilot",
        "a real training step and generation loop of a model with random weights, beside what is predicted (extra: torch)",
    ),
    "serve": (
        "trilemma.cli.measure_serve",
        "an OpenAI-compatible server under load: first tokens, tokens, failures, rows for validate, calibrate and settle",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = listed_commands(SUB_COMMANDS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"or measure one of\n{listed}\n\nsee trilemma measure WHAT --help"
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="within a minute (the default)")
    how.add_argument("--full", action="store_true", help="more shapes, longer warm-up, more repeats")
    parser.add_argument(
        "-o", "--output", metavar="FILE.toml", type=Path, help="write the accelerator file for --gpu FILE.toml"
    )
    parser.add_argument(
        "--device", default="", metavar="D", help="cpu, cuda or cuda:1 (default: the first card, else cpu)"
    )
    add_threads(parser)
    parser.add_argument("--load-from", metavar="DIR", type=Path, help="folder whose disk is read (default: this one)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    parser.add_argument("what", metavar="WHAT", nargs="?", help="measure a model or a server instead")
    parser.add_argument("rest", metavar="…", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(parser=parser)


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=whole_number, metavar="N",
        help="cores that a processor computes with (default: PyTorch's); with 1 the seconds that this process computed"
        " count, which other processes do not touch",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    if arguments.what is not None:
        return _run_sub_command(arguments)
    from trilemma.measuring.card_file import card_text, known_card
    from trilemma.measuring.collectives import world
    from trilemma.measuring.device import find_device
    from trilemma.measuring.suite import measure_device
    from trilemma.report.measured_card import measured_document, render_measured

    if arguments.load_from is not None and not arguments.load_from.is_dir():
        raise InputError(f"--load-from {shorten(str(arguments.load_from))} is no folder")
    if arguments.output is not None:
        _check_writable(arguments.output)
    rank, _ = world()
    device = find_device(arguments.device, threads=arguments.threads)
    found = measure_device(
        device, full=arguments.full, load_from=arguments.load_from, progress=progress if rank == 0 else None
    )
    if rank > 0:
        return YES
    text = card_text(found)
    if arguments.output is not None:
        _write(arguments.output, text)
    if arguments.json:
        from trilemma.report.document import dumps

        print(dumps(measured_document(found, known_card(device), text)))
        return YES
    show(render_measured(found, known_card(device), width=screen_width()))
    name = arguments.output or "machine.toml"
    print(
        f"\nwritten to {name}; ask with --gpu {name}"
        if arguments.output is not None
        else f"\nkeep it with -o {name}, and ask with --gpu {name}"
    )
    return YES


def _run_sub_command(arguments: argparse.Namespace) -> int:
    if arguments.what not in SUB_COMMANDS:
        raise UnknownName("sub-command", arguments.what, SUB_COMMANDS, hint="see trilemma measure --help")
    name, summary = SUB_COMMANDS[arguments.what]
    module = importlib.import_module(name)
    parser = type(arguments.parser)(
        prog=f"trilemma measure {arguments.what}", description=summary[0].upper() + summary[1:] + "."
    )
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments.rest, argparse.Namespace(behind=arguments.behind))))


def _check_writable(path: Path) -> None:
    """Before a minute or more is spent on what could not be kept."""
    if path.suffix != ".toml":
        raise InputError(f"-o {shorten(str(path))}: an accelerator file ends in .toml, so that --gpu takes it")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(
            f"-o {shorten(str(path))} cannot be written: it is a folder, or lies in none; give another file"
        )


def _write(path: Path, text: str) -> None:
    with written(path, what="-o"):
        path.write_text(text, encoding="utf-8")


def progress(done: int, total: int, what: str) -> None:
    from trilemma.cli.progress import bar

    bar(done, total, what)
