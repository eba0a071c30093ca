"""``trilemma runs WHAT``: the ledger of runs."""

from __future__ import annotations

import argparse

from trilemma.cli.sub_commands import SubCommands, add_sub_commands, run_sub_command

SUB_COMMANDS: SubCommands = {
    "record": ("trilemma.cli.runs_record", "keep a run by its figures"),
    "import": ("trilemma.cli.runs_import", "keep runs by the logs of trainers and engines"),
    "list": ("trilemma.cli.runs_list", "the latest runs"),
    "show": ("trilemma.cli.runs_show", "one run in full"),
    "diff": ("trilemma.cli.runs_diff", "what differs between two runs, and what that did"),
    "best": ("trilemma.cli.runs_best", "the best known runs of a model"),
    "gate": ("trilemma.cli.runs_gate", "exit 1 where a run is worse than its baseline"),
    "trend": ("trilemma.cli.runs_trend", "figures by the hour: where they changed for good, and what happened then"),
    "tune": ("trilemma.cli.runs_tune", "what to try next in training, and the gain to expect"),
    "export": ("trilemma.cli.runs_export", "runs as JSON, CSV, OpenMetrics or Parquet"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sub_commands(parser, "runs", SUB_COMMANDS)


def run(arguments: argparse.Namespace) -> int:
    return run_sub_command(arguments, "runs", SUB_COMMANDS)


def add_ledger(parser: argparse.ArgumentParser, *, json: bool = True) -> None:
    """``--ledger``, and ``--json`` where the command has a document."""
    parser.add_argument(
        "--ledger",
        metavar="FILE|URL",
        help="the ledger, a file or postgresql://… (default: TRILEMMA_LEDGER, else ~/.local/share/trilemma/runs.db)",
    )
    if json:
        parser.add_argument(
            "--json", action="store_true", help="print one JSON document on stdout and nothing else there"
        )
