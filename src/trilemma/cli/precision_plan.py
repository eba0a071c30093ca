"""``trilemma precision plan MODEL``: a number format for every tensor, within what the cache leaves of the card."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_engine_arguments,
    add_layout_arguments,
    add_model_arguments,
    add_output_arguments,
    add_workload_arguments,
    number,
    read_cluster,
    read_plan,
    read_workload,
)
from trilemma.cli.output import NO, YES, screen_width, show
from trilemma.errors import InputError

if TYPE_CHECKING:
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.architecture import Model
    from trilemma.plans import Plan
    from trilemma.precision.fitting import FittedChoice
    from trilemma.precision.plan import PrecisionPlan
    from trilemma.workloads import Serving


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    group = parser.add_argument_group("plan")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--preset", metavar="NAME", help="a named plan: 16-bit, fp8, w8a8, w4a16, nvfp4, layered, q4_k_m, …"
    )
    which.add_argument("--plan", metavar="FILE", help="a plan file (TOML or JSON) with rules by role and module")
    group.add_argument(
        "--budget-gib", type=number, metavar="X", help="GiB that the weights may take (default: what the cache leaves)"
    )
    group.add_argument("--sensitivity", metavar="FILE", help="what `precision measure --json` printed for this model")
    group.add_argument(
        "--max-kl", type=number, metavar="NATS", help="fewest bytes with at most this loss (needs --sensitivity)"
    )
    add_cluster_arguments(parser, required=False)
    add_layout_arguments(parser)
    add_workload_arguments(parser)
    add_engine_arguments(parser)
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.models.resolve import load_model

    _check(arguments)
    model = load_model(arguments.model, models_dir=arguments.models)
    plan = _stated_plan(model, arguments)
    choice = _on_cluster(model, plan, arguments)
    shown = choice.fitted.plan if choice is not None else plan
    if shown is None:
        raise InputError("a plan without --preset and --plan is chosen for a card; give --gpu, such as --gpu l40s")
    if arguments.json:
        from trilemma.report.document import dumps
        from trilemma.report.precision import plan_document

        print(dumps(plan_document(shown, choice=choice, explain=arguments.explain)))
    else:
        from trilemma.report.precision import render_plan

        show(render_plan(shown, choice=choice, explain=arguments.explain, width=screen_width()))
    return YES if choice is None or choice.fitted.fits else NO


def _check(arguments: argparse.Namespace) -> None:
    if arguments.precision:
        raise InputError("--precision is for other commands; here give --preset or --plan")
    if arguments.max_kl is not None and not arguments.sensitivity:
        raise InputError(
            "--max-kl needs measured sensitivities; make them with trilemma precision measure WEIGHTS --data TEXT --json"
            " and give the file as --sensitivity"
        )
    if arguments.sensitivity and (arguments.preset or arguments.plan):
        raise InputError("--sensitivity chooses formats by itself; leave --preset and --plan out")
    if arguments.budget_gib is not None and not 0 < arguments.budget_gib < 2**20:
        raise InputError(f"--budget-gib {arguments.budget_gib:g} is out of range; give GiB above 0")


def _stated_plan(model: Model, arguments: argparse.Namespace) -> PrecisionPlan | None:
    from trilemma.precision.presets import file_plan, preset_plan

    if arguments.preset:
        return preset_plan(model, arguments.preset)
    if arguments.sensitivity:
        return _measured_plan(model, arguments)
    return file_plan(model, arguments.plan) if arguments.plan else None


def _measured_plan(model: Model, arguments: argparse.Namespace) -> PrecisionPlan:
    from trilemma.precision.fitting import bytes_left, measured_plan
    from trilemma.precision.sensitivity import read_sensitivities

    problem = read_sensitivities(arguments.sensitivity).problem()
    budget_bytes = _budget_bytes(arguments)
    if budget_bytes is None and arguments.gpu:
        cluster, workload, serve = _served(arguments)
        budget_bytes = bytes_left(model, cluster=cluster, workload=workload, serve=serve)
    if budget_bytes is None and arguments.max_kl is None:
        raise InputError("--sensitivity needs a budget; give --gpu, --budget-gib or --max-kl")
    return measured_plan(model, problem, budget_bytes=budget_bytes, most_kl=arguments.max_kl)


def _on_cluster(model: Model, plan: PrecisionPlan | None, arguments: argparse.Namespace) -> FittedChoice | None:
    from trilemma.precision.fitting import FittedChoice, choose_plan, fit_plan

    if not arguments.gpu:
        return None
    budget_bytes = _budget_bytes(arguments)
    cluster, workload, serve = _served(arguments)
    if plan is None:
        return choose_plan(model, cluster=cluster, workload=workload, serve=serve, budget_bytes=budget_bytes)
    return FittedChoice(
        fitted=fit_plan(plan, cluster=cluster, workload=workload, serve=serve, budget_bytes=budget_bytes)
    )


def _budget_bytes(arguments: argparse.Namespace) -> int | None:
    from trilemma.quantities import GIB

    return None if arguments.budget_gib is None else int(arguments.budget_gib * GIB)


def _served(arguments: argparse.Namespace) -> tuple[Cluster, Serving, Plan]:
    cluster, workload = read_cluster(arguments), read_workload(arguments)
    return cluster, workload, read_plan(arguments, gpus=cluster.gpus, context=workload.longest_request)
