"""``trilemma precision gate``: may the candidate's recipe replace the reference's?"""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import number
from trilemma.cli.output import NO, YES, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="A.jsonl", help="losses of the trusted recipe, one JSON object a line")
    parser.add_argument(
        "candidate", metavar="B.jsonl", help="losses of the recipe to judge; several seeds may share a file"
    )
    parser.add_argument("--margin", type=number, default=0.01, metavar="SHARE", help="relative gap that matters (0.01)")
    parser.add_argument(
        "--tail", type=number, default=0.2, metavar="SHARE", help="last share of the steps compared (0.2)"
    )
    parser.add_argument(
        "--seed-noise",
        type=number,
        metavar="SHARE",
        help="spread of the final loss between seeds (0.003, more where runs are noisy)",
    )
    parser.add_argument(
        "--paired", action="store_true", help="both runs share seed and data order: no seed noise between"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.precision.gate import GateRules, gate
    from trilemma.precision.loss_files import read_curves
    from trilemma.report.document import dumps

    rules = GateRules(
        margin=arguments.margin, tail=arguments.tail, seed_noise=arguments.seed_noise, paired=arguments.paired
    )
    result = gate(read_curves(arguments.reference), read_curves(arguments.candidate), rules)
    if arguments.json:
        print(dumps(result.to_json()))
    else:
        show(f"{result.outcome.upper()}: {result.reason}")
        show(
            f"compared: the last {result.tail_steps:,} of {result.steps:,} common steps,"
            f" {result.runs.reference} reference and {result.runs.candidate} candidate run(s)"
        )
    return YES if result.outcome == "pass" else NO
