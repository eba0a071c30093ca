"""``trilemma runs tune MODEL``: what to try next in training, from the search and from what runs reached."""

from __future__ import annotations

import argparse
import json

from trilemma.cli.arguments import number, whole_number
from trilemma.cli.output import NO, YES, screen_width, show
from trilemma.cli.runs import add_ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="what is trained, as recorded with --model")
    parser.add_argument("--gpu", required=True, metavar="G[:N]", help="the cards")
    parser.add_argument("--seq", type=whole_number, required=True, metavar="SEQ", help="tokens of a sequence")
    parser.add_argument("--global-batch", type=whole_number, required=True, metavar="B", help="sequences of a step")
    parser.add_argument("--engine", metavar="NAME", help="the framework (default: as plan takes)")
    parser.add_argument("--most", type=whole_number, default=5, metavar="N", help="how many to name (default 5)")
    parser.add_argument("--least", type=number, default=0.0, metavar="SHARE", help="exit 1 where none gains as much")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.ask.questions import plan
    from trilemma.ask.tuned import tuned
    from trilemma.quantities import counted
    from trilemma.report.tables import render_table
    from trilemma.report.wrapping import wrapped
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        runs = ledger.runs(model=arguments.model, most=100_000)
    options = {"seq": arguments.seq, "global_batch": arguments.global_batch, "top": 20, "engine": arguments.engine}
    searched = plan(
        arguments.model, arguments.gpu, **{name: value for name, value in options.items() if value is not None}
    )
    found = tuned(arguments.model, list(searched.plans), runs, most=arguments.most)
    if arguments.json:
        rows = [
            {"plan": one.plan, "predicted": one.predicted, "expected": one.expected, "gain": one.gain,
             "low_gain": one.low_gain, "high_gain": one.high_gain}
            for one in found.tries
        ]  # fmt: skip
        best = {
            "id": found.best.id,
            "name": found.best.name,
            "tokens_per_s_per_gpu": found.best.figures["tokens_per_s_per_gpu"],
        }
        print(
            json.dumps(
                {
                    "schema": "trilemma/tuning@1",
                    "runs": found.runs,
                    "reached": found.reached,
                    "best": best,
                    "tries": rows,
                }
            )
        )
    else:
        reached = (
            f"{counted(found.runs, 'run')} reached {found.reached:.0%} of what was said of them; the best, {found.best.name},"
            f" makes {found.best.figures['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU"
        )
        show("\n".join(wrapped(reached, screen_width())))
        cells = [
            [
                one.plan,
                f"{one.predicted:,.0f}",
                f"{one.expected:,.0f}",
                f"{one.gain:+.0%}",
                f"{one.low_gain:+.0%} – {one.high_gain:+.0%}",
            ]
            for one in found.tries
        ]
        show(render_table(["try", "said", "expected", "gain", "90 %"], cells, align="lrrrr", width=screen_width()))
    return YES if any(one.gain > arguments.least for one in found.tries) else NO
