"""``trilemma plan MODEL --train SEQ --global-batch B``: search all training layouts for the best plans."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_model_arguments,
    add_output_arguments,
    read_cluster,
    whole_number,
)
from trilemma.cli.charts import add_chart_argument, draw, read_chart
from trilemma.cli.output import NO, YES, screen_width
from trilemma.cli.training_arguments import (
    add_plan_arguments,
    add_training_arguments,
    read_settled,
    read_training_workload,
    with_host_memory,
)
from trilemma.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from trilemma.estimate.estimate import Estimate
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.architecture import Model
    from trilemma.plans.training import TrainingPlan
    from trilemma.search.techniques import Technique
    from trilemma.search.training import TrainingSearch
    from trilemma.search.training_space import Settled
    from trilemma.workloads import TrainingWorkload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    add_training_arguments(parser)
    add_plan_arguments(parser, settled=True)
    parser.add_argument("--top", type=whole_number, default=5, metavar="N", help="plans to show (default 5)")
    add_chart_argument(parser, "the way to the best plan, its time and memory")
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.models.resolve import load_model
    from trilemma.search.training import search_training

    if not 1 <= arguments.top <= 100:
        raise InputError(f"--top {arguments.top} is out of range; give 1 to 100")
    chart = read_chart(arguments)
    model = load_model(arguments.model, models_dir=arguments.models)
    cluster, workload = with_host_memory(read_cluster(arguments), arguments), read_training_workload(arguments)
    settled = read_settled(arguments)
    search = search_training(model, cluster, workload, settled=settled, top=arguments.top)
    _show(arguments, model, cluster, workload, settled, search, chart)
    return YES if search.plans else NO


def _show(
    arguments: argparse.Namespace, model: Model, cluster: Cluster, workload: TrainingWorkload, settled: Settled,
    search: TrainingSearch, chart: Path | None,
) -> None:  # fmt: skip
    from trilemma.estimate.training_price import priced
    from trilemma.search.techniques import techniques
    from trilemma.search.training_questions import least_gpus, sensitivity, waterfall

    estimates = [_estimate(model, cluster, workload, one.plan) for one in search.plans]
    nearest = None
    if not search.plans and search.table.nearest is not None:
        nearest = _estimate(model, cluster, workload, search.table.nearest)
    gains = sensitivity(model, cluster, workload, search)
    least = least_gpus(model, cluster, workload, settled)
    steps = waterfall(model, cluster, workload, search)
    rows: tuple[Technique, ...] = ()
    if search.plans:
        best = search.plans[0].plan
        rows = techniques(model, cluster, best, workload, priced(model, cluster, best, workload)[1])
    drawn = nearest or (estimates[0] if estimates else None)
    if chart is not None and drawn is not None:
        from trilemma.report.charts import training_chart

        draw(training_chart(drawn, cluster.accelerator, steps), chart)
    if arguments.json:
        from trilemma.report.document import dumps
        from trilemma.report.training_plans import training_plans_document

        document = training_plans_document(
            search,
            estimates,
            gains=gains,
            least=least,
            waterfall=steps,
            techniques=rows,
            nearest=nearest,
            explain=arguments.explain,
        )
        print(dumps(document))
        return
    from trilemma.report.text import render_estimate
    from trilemma.report.training_plans import render_training_plans

    width = max(screen_width(), 100)
    print(
        render_training_plans(
            search, estimates, model=model.name, cluster=cluster, workload=workload, gains=gains, least=least,
            waterfall=steps, techniques=rows, width=width,
        )
    )  # fmt: skip
    shown = nearest or (estimates[0] if arguments.explain and estimates else None)
    if shown is not None:
        title = "the plan that misses by least" if nearest else "the best plan in full"
        print(f"\n{title}\n\n{render_estimate(shown, explain=arguments.explain, width=width)}")


def _estimate(model: Model, cluster: Cluster, workload: TrainingWorkload, plan: TrainingPlan) -> Estimate:
    from trilemma.estimate.training import estimate_training
    from trilemma.question import Question

    return estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=plan))
