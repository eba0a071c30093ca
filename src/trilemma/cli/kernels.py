"""``trilemma kernels MODEL``: what single kernels of one decode step take, fitted or measured, beside the estimate's step."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_engine_arguments,
    add_layout_arguments,
    add_model_arguments,
    read_cluster,
    read_plan,
    read_weights,
    whole_number,
)
from trilemma.cli.output import YES, screen_width, show
from trilemma.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    add_layout_arguments(parser)
    add_engine_arguments(parser)
    group = parser.add_argument_group("step")
    group.add_argument(
        "--batch", type=whole_number, required=True, metavar="N", help="sequences of one attention replica"
    )
    group.add_argument("--cached", type=whole_number, required=True, metavar="TOKENS", help="cached tokens of each")
    parser.add_argument(
        "--measured",
        action="store_true",
        help="from the measured tables of aiconfigurator-core where they have the operator (pip install 'trilemma[silicon]')",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.engines import canonical
    from trilemma.estimate.pool_start import start_pool
    from trilemma.formats import catalogue
    from trilemma.measured.kernels.times import kernel_times
    from trilemma.question import Question
    from trilemma.report.document import dumps
    from trilemma.report.kernel_times import kernels_document, render_kernels
    from trilemma.timing import Machine, decode_step, model_work
    from trilemma.timing.step_kernels import step_kernels
    from trilemma.workloads import Serving

    cluster = read_cluster(arguments)
    weights = read_weights(arguments, cluster.accelerator)
    plan = read_plan(arguments, gpus=cluster.gpus, context=arguments.cached, quantization=weights.on_load)
    if plan.pool.draft is not None:
        raise InputError("--draft: kernels are those of a step without drafts; leave it out")
    model, layout, engine = weights.model, plan.pool.layout, canonical(plan.engine.name)
    start = start_pool(plan.pool, Question(model=model, cluster=cluster, workload=Serving(), plan=plan))
    load = {"batch": arguments.batch, "context": arguments.cached, "kv_format": catalogue.get(start.kv_format)}
    calls = step_kernels(model, cluster.accelerator, layout, **load)
    times = kernel_times(calls, cluster.accelerator, engine, measured=arguments.measured)
    work = model_work(model, cluster.accelerator)
    step = decode_step(work, Machine.serving(cluster, work=work, engine=engine), layout, **load)
    lines = {name: float(seconds) for name, seconds in step.lines.items()}
    if arguments.json:
        print(dumps(kernels_document(times, lines)))
        return YES
    show(
        f"One decode step of {model.name}, batch {arguments.batch:,} at {arguments.cached:,} cached tokens, on {cluster.gpus} x"
        f" {cluster.accelerator.name}, {engine}\n"
    )
    show(render_kernels(times, lines, width=screen_width()))
    return YES
