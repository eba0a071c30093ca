"""``trilemma runs import``: runs by their logs."""

from __future__ import annotations

import argparse
import json

from trilemma.cli.arguments import whole_number
from trilemma.cli.output import YES
from trilemma.cli.runs import add_ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOG", nargs="+", help="logs of trainers and engines, one run each")
    parser.add_argument("--name", help="what to find it by (default: the file's name)")
    parser.add_argument("--model", default="", help="what ran (default: as the log says)")
    parser.add_argument("--gpu", default="", help="on which card")
    parser.add_argument("--gpus", type=whole_number, help="how many of them")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.runs.importing import imported
    from trilemma.runs.store import RunLedger, ledger_path

    found = [
        imported(log, name=arguments.name, model=arguments.model, gpu=arguments.gpu, gpus=arguments.gpus)
        for log in arguments.logs
    ]
    with RunLedger(ledger_path(arguments.ledger)) as ledger:
        told = [{"id": ledger.add(one), "name": one.name, "figures": dict(one.figures)} for one in found]
        if arguments.json:
            print(json.dumps({"ledger": str(ledger.path), "runs": told}))
        else:
            for one in told:
                print(f"run {one['id']} {one['name']}: {len(one['figures'])} figures")  # type: ignore[arg-type]
    return YES
