"""``trilemma simulate traffic``: a trace that looks like another and holds none of its requests."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trilemma.errors import InputError
from trilemma.outside_files import written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace", metavar="TRACE", help="requests with their times, as for trilemma simulate serving --trace"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to write: JSON lines, or CSV by the name"
    )
    parser.add_argument(
        "--requests", type=int, metavar="N", help="requests to write (default: as many as the trace has)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of what is drawn (default 0)")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.simulation.serving.likeness import TraceLikeness
    from trilemma.simulation.serving.traces import read_trace

    if arguments.requests is not None and arguments.requests < 1:
        raise InputError(f"`requests` {arguments.requests} is out of range; give a whole number from 1")
    likeness = TraceLikeness.of(read_trace(Path(arguments.trace)))
    many = arguments.requests or int(likeness.counts.sum())
    path, plain = Path(arguments.output), arguments.output.endswith(".csv")
    with written(path), path.open("w", encoding="utf-8") as file:
        if plain:
            print("arrival,input,output", file=file)
        for one in likeness.drawn(many, max(arguments.seed, 0)):
            row = {"arrival": round(one.arrival_s, 4), "input": one.isl, "output": one.osl}
            print(",".join(map(str, row.values())) if plain else json.dumps(row), file=file)
    rate = likeness.counts.sum() / likeness.span_s
    print(
        f"{many:,} requests like those of {Path(arguments.trace).name}: {rate:.3g} a second,"
        f" gaps that vary by {likeness.gap_cv:.2f}, lengths in {likeness.together.size} classes; written to {path.name}"
    )
    return 0
