"""``trilemma plan``: search all layouts, precisions and loads for the best plans."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trilemma.cli.arguments import (
    add_cluster_arguments,
    add_model_arguments,
    add_output_arguments,
    add_profile_argument,
    number,
    read_cluster,
    whole_number,
)
from trilemma.cli.charts import add_chart_argument, draw, read_chart
from trilemma.cli.output import NO, YES, screen_width
from trilemma.errors import InputError
from trilemma.versions import DEFAULT_ENGINE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trilemma.estimate.estimate import Estimate
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.architecture import Model
    from trilemma.plans import EngineRef
    from trilemma.search import Fixed, SearchResult
    from trilemma.workloads import Serving

#: Plans of the front that a chart shows, and a target that every plan meets.
_CHART_POINTS, _NO_TARGET_MS = 24, 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_cluster_arguments(parser)
    load = parser.add_argument_group("workload")
    load.add_argument("--serve", metavar="ISL/OSL", required=True, help="prompt and output tokens, such as 4096/1024")
    load.add_argument("--concurrency", type=whole_number, metavar="C", help="requests running at once, over all GPUs")
    load.add_argument("--rate", type=number, metavar="PER_S", help="requests arriving per second")
    load.add_argument(
        "--context", type=whole_number, metavar="TOKENS", help="longest request to admit (default ISL + OSL)"
    )
    load.add_argument(
        "--prefix-hit", type=number, default=0.0, metavar="SHARE", help="share of prompt tokens found in cache"
    )
    load.add_argument("--ttft", type=number, metavar="MS", help="target: time to first token")
    load.add_argument("--tpot", type=number, metavar="MS", help="target: time per output token")
    load.add_argument(
        "--confidence",
        type=number,
        metavar="P",
        help="chance with which each target has to hold, such as 0.8 (default: the central value holds it)",
    )
    fixed = parser.add_argument_group("settled by you (default: all are searched)")
    fixed.add_argument(
        "--pools",
        choices=("aggregated", "disaggregated", "both"),
        default="both",
        help="prefill and decode in the same engines, in pools of their own, or whichever is better (default)",
    )
    for name, text in (("tp", "tensor parallel"), ("pp", "pipeline parallel"), ("dp", "data parallel replicas")):
        fixed.add_argument(f"--{name}", type=whole_number, metavar="N", help=text)
    fixed.add_argument(
        "--ep", action=argparse.BooleanOptionalAction, default=None, help="spread whole experts over tp x dp, or never"
    )
    fixed.add_argument(
        "--precision",
        metavar="SCHEME[,…]",
        help="as-is, bf16, fp8, w8a8, awq, nvfp4, … (default: all that fit the card)",
    )
    fixed.add_argument("--kv-dtype", metavar="FORMAT[,…]", help="auto, fp8, …")
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--engine",
        default=DEFAULT_ENGINE,
        metavar="NAME[@VERSION]",
        help="engine and version (default: newest vLLM known)",
    )
    engine.add_argument("--memory-fraction", type=number, metavar="F", help="share of the card the engine may use")
    engine.add_argument("--max-seqs", type=whole_number, metavar="N", help="most sequences in one step")
    engine.add_argument("--max-batched-tokens", type=whole_number, metavar="N", help="most tokens in one step")
    engine.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--top", type=whole_number, default=5, metavar="N", help="plans to show (default 5)")
    add_profile_argument(parser)
    add_chart_argument(parser, "the Pareto front with the plans shown")
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.models.resolve import load_model
    from trilemma.search import search_serving

    if not 1 <= arguments.top <= 100:
        raise InputError(f"--top {arguments.top} is out of range; give 1 to 100")
    chart = read_chart(arguments)
    model = load_model(arguments.model, models_dir=arguments.models)
    free = counts_gpus(arguments)
    cluster = one_node(arguments) if free else read_cluster(arguments)
    workload, fixed, engine = workload_of(arguments), _fixed(arguments), engine_of(arguments)
    search = partial(
        search_serving,
        model,
        cluster,
        top=arguments.top,
        fixed=fixed,
        precision=names_of(arguments.precision, "--precision"),
        kv_dtype=names_of(arguments.kv_dtype, "--kv-dtype"),
        engine=engine,
        pools=arguments.pools,
        free=free,
        confidence=arguments.confidence,
    )
    result = search(workload, front=8 if arguments.json else 0)
    if chart is not None:
        _draw(search, workload, model, cluster, chart)
    nearest = None if result.plans else _nearest(model, cluster, workload, fixed, engine)
    _show(arguments, model, cluster, result, nearest)
    return YES if result.plans and result.meets_targets else NO


def _draw(search: Callable[..., SearchResult], workload: Serving, model: Model, cluster: Cluster, chart: Path) -> None:
    """The front in more points than the screen shows, and beside it the front without targets."""
    from trilemma.report.charts import pareto_chart

    limited = search(workload, front=_CHART_POINTS)
    asked, unlimited = limited.workload, None
    if limited.meets_targets and (asked.ttft_ms or asked.tpot_ms):
        unlimited = search(replace(asked, ttft_ms=None, tpot_ms=_NO_TARGET_MS), front=_CHART_POINTS)
    draw(pareto_chart(limited, model=model.name, cluster=cluster, unlimited=unlimited), chart)


def _show(
    arguments: argparse.Namespace, model: Model, cluster: Cluster, result: SearchResult, nearest: Estimate | None
) -> None:
    if arguments.json:
        from trilemma.report.document import dumps, estimate_document, plans_document

        document = plans_document(
            [found.estimate for found in result.plans],
            least_gpus=result.least_gpus,
            cheapest=result.cheapest,
            pareto=result.pareto,
            searched=result.searched,
            legal=result.legal,
            fitting=result.fitting,
            seconds=result.seconds,
            rejected=result.rejected,
            explain=arguments.explain,
        )
        if nearest is not None and not nearest.fits:
            document["nearest"] = estimate_document(nearest, explain=arguments.explain)
        print(dumps(document))
        return
    from trilemma.report.plans import nearest_words, render_plans
    from trilemma.report.text import render_estimate

    explanation = _explanation(cluster, result) if arguments.explain else ()
    width = max(screen_width(), 100)
    print(render_plans(result, model=model.name, cluster=cluster, width=width, explanation=explanation))
    if nearest is not None:
        print(f"\n{nearest_words(nearest, result)}\n\n{render_estimate(nearest, explain=arguments.explain)}")
    elif arguments.explain and result.plans:
        print(f"\nthe best plan in full\n\n{render_estimate(result.plans[0].estimate, explain=True)}")


def counts_gpus(arguments: argparse.Namespace) -> bool:
    """Whether the number of GPUs is left to the search: ``--gpu G`` without ``:N``, and no ``--nodes`` either."""
    from trilemma.hardware.catalogue import states_count

    return not states_count(arguments.gpu) and not arguments.nodes


def one_node(arguments: argparse.Namespace) -> Cluster:
    """A node of ``--gpu``'s kind, the most GPUs that an engine is given before it spans several."""
    counted = argparse.Namespace(**vars(arguments))
    one = read_cluster(arguments)
    counted.gpu = f"{arguments.gpu}:{arguments.gpus_per_node or one.accelerator.gpus_per_node}"
    return read_cluster(counted)


def _explanation(cluster: Cluster, result: SearchResult) -> tuple[str, ...]:
    from trilemma.timing import Machine, model_work, speed_explanation

    if not result.plans:
        return ()
    from trilemma.engines import canonical

    best = result.plans[0]
    work = model_work(best.precision.model, cluster.accelerator)
    return speed_explanation(work, Machine.serving(cluster, work=work, engine=canonical(best.plan.engine.name)))


def _nearest(model: Model, cluster: Cluster, workload: Serving, fixed: Fixed, engine: EngineRef) -> Estimate:
    """The plainest plan that does not fit, with the changes that would make it."""
    from trilemma.search.nearest import nearest_miss

    return nearest_miss(model, cluster, workload, fixed=fixed, engine=engine)


def workload_of(arguments: argparse.Namespace) -> Serving:
    from trilemma.workloads import Serving, parse_lengths

    isl, osl = parse_lengths(arguments.serve)
    if arguments.context is not None and arguments.context < isl + osl:
        raise InputError(
            f"--context {arguments.context} is shorter than the {isl + osl} tokens of --serve {arguments.serve}"
        )
    return Serving(
        isl=isl, osl=osl, concurrency=arguments.concurrency, rate=arguments.rate, context=arguments.context,
        prefix_hit=arguments.prefix_hit, ttft_ms=arguments.ttft, tpot_ms=arguments.tpot,
    )  # fmt: skip


def _fixed(arguments: argparse.Namespace) -> Fixed:
    from trilemma.search import Fixed

    return Fixed(
        tp=arguments.tp, pp=arguments.pp, dp=arguments.dp, expert_parallel=arguments.ep,
        memory_fraction=arguments.memory_fraction, max_seqs=arguments.max_seqs,
        max_batched_tokens=arguments.max_batched_tokens, eager=arguments.eager,
    )  # fmt: skip


def engine_of(arguments: argparse.Namespace) -> EngineRef:
    from trilemma.plans import EngineRef

    name, _, version = arguments.engine.partition("@")
    return EngineRef(name=name, version=version or None)


def names_of(text: str | None, flag: str) -> Sequence[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(names) > 16:
        raise InputError(f"{flag} {text[:80]!r} names {len(names)} formats; give 1 to 16, separated by commas")
    return list(dict.fromkeys(names))
