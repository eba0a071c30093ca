"""``trilemma calibrate WHAT``: what can be fitted to measurements."""

from __future__ import annotations

import argparse

from trilemma.cli.sub_commands import SubCommands, add_sub_commands, run_sub_command

SUB_COMMANDS: SubCommands = {
    "kernels": ("trilemma.cli.calibrate_kernels", "kernel coefficients from published tables of operator latencies"),
    "power": ("trilemma.cli.calibrate_power", "watts of cards by what they do, fitted to a table of measured energy"),
    "serving": ("trilemma.cli.calibrate_serving", "a few benchmark runs of one deployment into a named profile"),
    "serving-table": ("trilemma.cli.calibrate_serving_table", "fit the shipped terms of serving to a measured table"),
    "training": ("trilemma.cli.calibrate_training", "fit the coefficients of training time to a measured table"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sub_commands(parser, "calibrate", SUB_COMMANDS)


def run(arguments: argparse.Namespace) -> int:
    return run_sub_command(arguments, "calibrate", SUB_COMMANDS)
