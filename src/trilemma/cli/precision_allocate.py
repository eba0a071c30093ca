"""``trilemma precision allocate WEIGHTS --data TEXT``: formats under a budget, measured again as a whole."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from trilemma.cli.arguments import add_output_arguments, number
from trilemma.cli.output import YES, screen_width, show
from trilemma.cli.precision_measure import add_bench_arguments, progress
from trilemma.errors import InputError, shorten
from trilemma.outside_files import written

if TYPE_CHECKING:
    from trilemma.precision.measured_plan import BudgetChoice, Settling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    group = parser.add_argument_group("budget (default: --bits 4.5)")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--bits", type=number, nargs="+", metavar="B", help="bits per parameter, scales included; several allowed"
    )
    which.add_argument("--budget-gib", type=number, metavar="X", help="GiB that the matrices may take")
    which.add_argument("--max-kl", type=number, metavar="NATS", help="fewest bytes whose measured KL is at most this")
    which.add_argument("--midway", action="store_true", help="budgets midway between neighbouring uniform formats")
    parser.add_argument("--sensitivity", metavar="FILE", help="reuse what `precision measure --json` printed")
    parser.add_argument("--plot", metavar="FILE", help="draw the frontier as PNG or SVG (needs matplotlib)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the first plan for `precision plan --plan FILE`")
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.precision.measure import candidates, open_bench
    from trilemma.precision.measured_plan import Settling
    from trilemma.precision.sensitivity import measure_sensitivities, read_sensitivities

    bench = open_bench(arguments.weights, arguments.data, sequences=arguments.sequences, window=arguments.window)
    if arguments.sensitivity:
        found = read_sensitivities(arguments.sensitivity)
        _check_groups(
            found.elements, {name: group.elements for name, group in bench.calibration.groups.items()}, arguments
        )
    else:
        found = measure_sensitivities(bench.calibration, candidates(arguments.formats), report=progress)
    settling = Settling(found.problem(), bench.calibration, bench.held_out)
    settled = _settle(settling, arguments)
    if arguments.output:
        _write(Path(arguments.output), settled[0], arguments.weights)
    if arguments.plot:
        from trilemma.report.frontier_plot import plot_frontier

        plot_frontier(Path(arguments.plot), settled, settling.uniforms(), settling.problem, settling.frontier)
    from trilemma.report.measurement import allocation_document, render_allocations

    if arguments.json:
        from trilemma.report.document import dumps

        print(
            dumps(
                allocation_document(
                    settled, settling.uniforms(), settling.problem, settling.frontier, model=bench.source
                )
            )
        )
    else:
        told = render_allocations(
            settled, settling.uniforms(), settling.problem, settling.frontier, model=bench.source, width=screen_width()
        )
        show(told)
    return YES


def _settle(settling: Settling, arguments: argparse.Namespace) -> list[BudgetChoice]:
    from trilemma.precision.measured_plan import midway_budgets
    from trilemma.quantities import GIB

    if arguments.max_kl is not None:
        if not arguments.max_kl > 0:
            raise InputError(f"--max-kl {arguments.max_kl:g} is out of range; give nats above 0, such as 0.05")
        return [settling.settle_loss(arguments.max_kl)]
    if arguments.budget_gib is not None:
        return [settling.settle(int(arguments.budget_gib * GIB))]
    if arguments.midway:
        return [settling.settle(budget) for budget in midway_budgets(settling)]
    bits = arguments.bits or [4.5]
    if not all(0 < one <= 64 for one in bits):
        raise InputError(f"--bits {max(bits):g} is out of range; give bits per parameter such as 4.5")
    return [settling.settle(settling.problem.bytes_at(one)) for one in bits]


def _check_groups(measured: object, own: object, arguments: argparse.Namespace) -> None:
    if measured != own:
        raise InputError(
            f"{shorten(arguments.sensitivity)} was measured on other weights than {shorten(arguments.weights)}; measure again"
        )


def _write(path: Path, one: BudgetChoice, weights: str) -> None:
    from trilemma.precision.measured_plan import plan_rules

    document = {
        "name": path.stem,
        "about": f"allocated on {Path(weights).name}: KL {one.held_out.kl:.5g} nats held out",
        "rules": [*plan_rules(one.chosen.formats), {"roles": ["*"], "weights": "own"}],
    }
    with written(path, what="--output"):
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
