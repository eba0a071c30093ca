"""The command line: finds the command, lets it run, turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from trilemma.cli.output import BAD_INPUT, OUR_BUG, YES
from trilemma.cli.terminal import readable_output
from trilemma.errors import InputError, shorten

#: command → (module, one-line summary). A module is imported only when its command runs and offers
#: ``add_arguments(parser)`` and ``run(arguments) -> exit code``.
COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("trilemma.cli.fit", "one plan: memory line by line, KV capacity, speed, cost, verdict"),
    "check": ("trilemma.cli.check", "paste an engine command: will it start, where does it die, what to change"),
    "plan": ("trilemma.cli.plan", "search all layouts for the best plans"),
    "compare": ("trilemma.cli.compare", "GPUs side by side for one job"),
    "recommend": ("trilemma.cli.recommend", "which GPUs to take for a need, and how many"),
    "facility": (
        "trilemma.cli.facility",
        "racks, cooling, energy, carbon, water and dollars of a plan or of so many cards",
    ),
    "export": ("trilemma.cli.export", "turn a plan into files and commands that an engine accepts"),
    "simulate": ("trilemma.cli.simulate", "what happens over time: engines under real traffic, event by event"),
    "here": ("trilemma.cli.here", "this machine: its cards, which models run on it, how fast, one command each"),
    "which": ("trilemma.cli.which", "every model that runs on given cards, the largest first, with context and speed"),
    "doctor": ("trilemma.cli.doctor", "what is wrong with this machine: links, clocks, errors, limits, versions"),
    "lint": ("trilemma.cli.lint", "a script, configuration or command: what is not there, trains nothing, cannot run"),
    "audit": ("trilemma.cli.audit", "the efficiency checklist over a plan and what is known of its run"),
    "diagnose": ("trilemma.cli.diagnose", "logs, traces, dumps, telemetry: what is wrong, why, what mends it"),
    "upgrade": ("trilemma.cli.upgrade", "what another version of the engine changes for a command"),
    "diff": ("trilemma.cli.diff", "what a change of a command or manifest changes, for the review of it"),
    "validate": ("trilemma.cli.validate", "predicted against measured, error by class"),
    "precision": ("trilemma.cli.precision", "low precision in training and in weights: what fails, why, what mends it"),
    "measure": ("trilemma.cli.measure", "measure on this machine and print it beside what is predicted"),
    "runs": ("trilemma.cli.runs", "the ledger of runs: record, import, compare, trend, gate"),
    "calibrate": ("trilemma.cli.calibrate", "fit coefficients to measured tables"),
    "settle": ("trilemma.cli.settle", "a benchmark of an exported plan against its prediction; updates the profile"),
    "completion": ("trilemma.cli.completion", "a script with which bash, zsh or fish complete commands and options"),
    "admission": ("trilemma.cli.admission", "a Kubernetes webhook that denies engines which cannot start"),
    "web": ("trilemma.cli.web", "the same questions in a browser"),
    "hardware": ("trilemma.cli.hardware", "the accelerator catalogue, with sources"),
    "models": ("trilemma.cli.models", "what a model is made of: parameters, layers, cache"),
    "formats": ("trilemma.cli.formats", "number formats: bits, range, step, cost of scales"),
    "kernels": ("trilemma.cli.kernels", "single kernels of a decode step, fitted or measured, beside the estimate"),
}
#: Commands that answer for training too, in words of their own (``add_training``), where ``--train`` is given.
TRAINING = ("fit", "plan", "compare", "recommend")
#: What a system refuses of a name or an output that somebody gave, wherever that shows.
_REFUSALS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
#: Commands that take any number of words before ``--`` and an engine's command behind it, which argparse cannot tell apart.
_WORDS_BEHIND = ("audit", "diagnose", "measure")


#: What is said where nothing is asked: the three questions that most come with.
_START = """\
trilemma: does it fit, how fast, on which GPUs, at what cost, and why

  the best way to serve a model on these cards
    trilemma plan llama-3.1-70b --gpu h200-sxm:8 --serve 4096/1024
  will this command start, and if not, what should change
    trilemma check --gpu h100-sxm:8 -- vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8
  how to train it
    trilemma plan llama-3.1-8b --gpu h100-sxm:16 --train 8192 --global-batch 128

trilemma --help lists all commands, trilemma COMMAND --help their options;
trilemma models and trilemma hardware list the names."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on stderr and exit code 2, and that takes options as they are spelt alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but words that this parser does not know are refused here, by the parser whose options are near."""
        words = sys.argv[1:] if args is None else list(args)
        unknown = self._unknown_among(words)
        found, rest = (namespace, []) if unknown else super().parse_known_args(words, namespace)
        if unknown or rest:
            from trilemma.cli.unknown_options import refusal

            raise refusal(self, unknown or rest, words)
        return found, rest

    def _unknown_among(self, words: Sequence[str]) -> list[str]:
        """``words`` from the first long option on that is not known; none where words are handed on to others."""
        if any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions):
            return []
        own = list(words[: words.index("--")] if "--" in words else words)
        unknown = (word.startswith("--") and word.partition("=")[0] not in self._option_string_actions for word in own)
        at = next((at for at, is_unknown in enumerate(unknown) if is_unknown), None)
        return [] if at is None else own[at:]

    def error(self, message: str) -> NoReturn:
        said, choices, known = message.partition(" (choose from ")
        raise InputError(f"{shorten(said, most=240)}{choices}{known}; see {self.prog} --help")


def build_parser(command: str | None, *, training: bool = False) -> Parser:
    """The top-level parser, with the arguments of ``command`` alone filled in (the others would cost start-up time).

    ``training`` fills in those of its training form.
    """
    parser = Parser(prog="trilemma", description="Does it fit, how fast, on which GPUs, at what cost, and why.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == command:
            if name in TRAINING:
                sub.epilog = (
                    None if training else f"For training: trilemma {name} MODEL --train SEQ; see --train 4096 --help."
                )
            asked = importlib.import_module(module)
            (asked.add_training if training and name in TRAINING else asked.add_arguments)(sub)
            sub.set_defaults(module=module)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit codes: 0 yes, 1 no, 2 bad input, 3 our bug."""
    with readable_output():
        return _answered(sys.argv[1:] if argv is None else argv)


def _answered(arguments: list[str]) -> int:
    try:
        try:
            return _run(arguments)
        finally:  # help leaves by SystemExit
            sys.stdout.flush()
    except InputError as error:
        print(f"trilemma: {' '.join(error.flags.split())}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        _write_no_more()
        return YES
    except OSError as error:
        if error.errno not in _REFUSALS:
            return _our_bug(error)
        if error.filename is None:
            _write_no_more()
        print(f"trilemma: {shorten(str(error.filename or 'the output'))}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("trilemma: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _our_bug(error)


def _write_no_more() -> None:
    """Leave what is not written yet unwritten: what reads it has gone, or has no room."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _our_bug(error: Exception) -> int:
    if os.environ.get("TRILEMMA_DEBUG"):
        raise error
    print(
        f"trilemma: this is a bug of ours: {type(error).__name__}: {shorten(str(error), most=200)}"
        " (set TRILEMMA_DEBUG=1 for the traceback)",
        file=sys.stderr,
    )
    return OUR_BUG


def _run(arguments: list[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        from trilemma.errors import UnknownName

        raise UnknownName("command", command, COMMANDS, hint="see trilemma --help")
    training = any(word == "--train" or word.startswith("--train=") for word in arguments)
    parser = build_parser(command, training=training)
    behind: list[str] = []
    if command in _WORDS_BEHIND and "--" in arguments:
        at = arguments.index("--")
        arguments, behind = arguments[:at], arguments[at + 1 :]
    parsed = parser.parse_args(arguments, argparse.Namespace(behind=behind))
    if parsed.version:
        from trilemma import __version__

        print(f"trilemma {__version__}")
        return YES
    if command is None:
        print(_START)
        return YES
    return int(importlib.import_module(parsed.module).run(parsed))


if __name__ == "__main__":
    sys.exit(main())
