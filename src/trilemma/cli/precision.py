"""``trilemma precision WHAT``: questions of number formats."""

from __future__ import annotations

import argparse

from trilemma.cli.sub_commands import SubCommands, add_sub_commands, run_sub_command

SUB_COMMANDS: SubCommands = {
    "train-lab": ("trilemma.cli.precision_train_lab", "train a tiny model under many recipes: who fails, when, why"),
    "gate": ("trilemma.cli.precision_gate", "are two loss curves equivalent"),
    "recipe": ("trilemma.cli.precision_recipe", "the low-precision recipe that a GPU and a framework support"),
    "plan": ("trilemma.cli.precision_plan", "bits per tensor under a budget"),
    "measure": ("trilemma.cli.precision_measure", "sensitivity of real weights to each format"),
    "allocate": ("trilemma.cli.precision_allocate", "bits per tensor from measured sensitivities"),
    "export": ("trilemma.cli.precision_export", "a plan as files that toolkits and engines accept"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sub_commands(parser, "precision", SUB_COMMANDS)


def run(arguments: argparse.Namespace) -> int:
    return run_sub_command(arguments, "precision", SUB_COMMANDS)
