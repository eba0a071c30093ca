"""``trilemma simulate WHAT``: what happens over time, event by event."""

from __future__ import annotations

import argparse

from trilemma.cli.sub_commands import SubCommands, add_sub_commands, run_sub_command

SUB_COMMANDS: SubCommands = {
    "serving": ("trilemma.cli.simulate_serving", "engines under real traffic: percentiles, queues, caches"),
    "traffic": ("trilemma.cli.simulate_traffic", "a trace that looks like another and holds none of its requests"),
    "cluster": (
        "trilemma.cli.simulate_cluster",
        "a shared cluster: queues, gangs, topology, preemption; waits and GPU-hours",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sub_commands(parser, "simulate", SUB_COMMANDS)


def run(arguments: argparse.Namespace) -> int:
    return run_sub_command(arguments, "simulate", SUB_COMMANDS)
