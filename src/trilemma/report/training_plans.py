"""A training search for people and as JSON: the best plans, techniques, waterfall, what more hardware buys, the losers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trilemma.columns import column, document_of
from trilemma.estimate.estimate import Estimate
from trilemma.hardware.cluster import Cluster
from trilemma.plans.training import Recompute
from trilemma.plans.training_document import training_plan_to_document
from trilemma.plans.words import training_layout
from trilemma.quantities import GIB, counted, show_count, show_usd
from trilemma.report.bars import bar
from trilemma.report.document import PlansDocument
from trilemma.report.tables import render_table
from trilemma.report.training import run_costs
from trilemma.report.wrapping import wrapped
from trilemma.search.techniques import Technique
from trilemma.search.training import FoundPlan, TrainingSearch
from trilemma.search.training_questions import Gain, LeastGpus, WaterfallStep
from trilemma.search.training_scaling import ScalingPoint
from trilemma.search.training_table import SURE
from trilemma.workloads import TrainingWorkload

_HEADERS = (
    "#", "layout", "batch", "ZeRO", "recompute", "recipe", "step s", "tok/s/GPU", "MFU", "$/M tok", "memory per GPU", "sure",
    "bound by",
)  # fmt: skip
#: Columns that give way where the window is narrow, the first first.
_YIELDS = ("bound by", "memory per GPU", "MFU", "recompute", "ZeRO", "batch")
_BAR_CELLS = 8
_MOST_REASONS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlansDocument(PlansDocument):
    """``trilemma/plans@1`` with what training adds: what 10 % more of each resource buys, the way from a naive plan, and the
    techniques of the first."""

    COLUMNS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {}
        for name in (
            "schema", "plans", "pareto", "searched", "legal", "fitting", "seconds", "rejected", "sensitivity", "waterfall",
            "techniques", "scaling", "assumed", "blocked", "least_gpus", "cheapest", "nearest",
        )
    }  # fmt: skip

    sensitivity: tuple[Gain, ...] | None = field(default=None, metadata=column(exact=True, keep="empty"))
    waterfall: tuple[WaterfallStep, ...] | None = field(default=None, metadata=column(exact=True, keep="empty"))
    techniques: tuple[Technique, ...] | None = field(default=None, metadata=column(exact=True, keep="empty"))
    scaling: tuple[ScalingPoint, ...] = ()


def training_plans_document(
    search: TrainingSearch,
    estimates: Sequence[Estimate],
    *,
    gains: Sequence[Gain],
    least: LeastGpus | None,
    waterfall: Sequence[WaterfallStep],
    techniques: Sequence[Technique] = (),
    nearest: Estimate | None = None,
    scaling: Sequence[ScalingPoint] = (),
    explain: bool = False,
) -> dict[str, Any]:
    """``trilemma/plans@1`` with what training adds: ``sensitivity``, ``waterfall``, ``techniques`` of the first plan,
    ``least_gpus``, ``nearest``."""
    fewest = least and {
        "gpus": least.gpus,
        "offload": least.offload,
        "device_bytes": int(least.device_bytes),
        "plan": training_plan_to_document(least.plan),
    }
    document = TrainingPlansDocument.of(
        search,
        estimates,
        sensitivity=tuple(gains),
        waterfall=tuple(waterfall),
        techniques=tuple(techniques),
        least_gpus=fewest,
        nearest=nearest,
        scaling=tuple(scaling),
    )
    return document_of(document, explain=explain)


def render_training_plans(
    search: TrainingSearch,
    estimates: Sequence[Estimate],
    *,
    model: str,
    cluster: Cluster,
    workload: TrainingWorkload,
    gains: Sequence[Gain],
    least: LeastGpus | None,
    waterfall: Sequence[WaterfallStep],
    techniques: Sequence[Technique],
    width: int = 140,
) -> str:
    """The whole answer on a screen."""
    title = f"{model} on {cluster.gpus} x {cluster.accelerator.name}"
    parts = [f"{title}: {workload_words(workload)}"]
    best = list(zip(search.plans, estimates, strict=True))[: search.best]
    if not best:
        return "\n".join([*parts, "", "NO PLAN FITS", "", *_losers(search), *_least(least)])
    rows = [_row(rank, one, estimate, search) for rank, (one, estimate) in enumerate(best, 1)]
    parts += ["", *render_table(_HEADERS, rows, align="rlrlllrrrrlrl", width=width, yields=_YIELDS).splitlines()]
    parts += [*_notes(best[0][1], search, width), *_whole_run(best[0][1])]
    parts += ["", *_front(search, estimates, width)]
    parts += [
        "",
        *_techniques(techniques, width),
        "",
        *_waterfall(waterfall, width),
        "",
        *_gains(gains),
        *_least(least),
    ]
    parts += ["", *_losers(search), "", *_warnings(best[0][1], width)]
    return "\n".join(line.rstrip() for line in parts)


def workload_words(workload: TrainingWorkload) -> str:
    words = f"sequences of {counted(workload.seq, 'token')}, {show_count(workload.global_batch)} to a step"
    if workload.method != "full":
        words += f", {workload.method} of rank {workload.rank}"
    return words + (f", {show_count(workload.tokens)} tokens in all" if workload.tokens else "")


def recompute_words(recompute: Recompute) -> str:
    if recompute.mode == "selective":
        return "+".join(recompute.parts)
    return recompute.mode if recompute.layers is None else f"full, {counted(recompute.layers, 'layer')}"


def seconds(value: float) -> str:
    """Three digits or more, never fewer than two after the point below a hundred."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _row(rank: int, one: FoundPlan, estimate: Estimate, search: TrainingSearch) -> list[str]:
    plan = one.plan
    share = one.device_bytes / search.capacity_bytes
    offload = " + host" if plan.offload.any else ""
    rate = estimate.speed.tokens_per_s_per_gpu if estimate.speed else None
    dollars = estimate.usd_per_million_tokens
    return [
        str(rank),
        training_layout(plan),
        str(plan.micro_batch),
        f"{plan.zero}{offload}",
        recompute_words(plan.recompute),
        plan.recipe.name,
        seconds(one.step_s),
        f"{rate.value:,.0f}" if rate else "–",
        f"{one.mfu:.1%}",
        f"${show_usd(dollars.value)}" if dollars else "–",
        f"▕{bar(share, _BAR_CELLS)}▏{share:4.0%}",
        f"{estimate.verdict.probability:.0%}",
        estimate.bottleneck.resource.replace("_", " ") if estimate.bottleneck else "–",
    ]


def _notes(estimate: Estimate, search: TrainingSearch, width: int) -> list[str]:
    """What the table's columns mean, and what was passed over."""
    peak = estimate.training_step.get("mfu_peak", "bf16")
    text = f"MFU counts causal attention once, against the dense {peak} peak; batch is the micro-batch, sure the chance to fit."
    if search.faster_but_unsure:
        text += (
            f" {show_count(search.faster_but_unsure)} faster plans are less than {SURE:.0%} sure to fit and not ranked."
        )
    if estimate.speed is not None and estimate.speed.step_s is not None:
        step = estimate.speed.step_s.interval
        text += f" #1 takes {seconds(step.low)} to {seconds(step.high)} s with 90 % probability."
    return wrapped(text, width)


def _whole_run(estimate: Estimate) -> Iterator[str]:
    """Days, dollars and energy of the run, where its length is stated."""
    run = estimate.training_run
    if run:
        days = run["days"]
        told = [f"{days['value']:,.1f} days ({days['low']:,.1f} – {days['high']:,.1f})", *run_costs(run)]
        if run["interruptions"]:
            told.append(f"goodput {run['goodput']:.1%} with {run['interruptions']:,.1f} interruptions")
        yield f"the run with #1: {', '.join(told)}"


def _front(search: TrainingSearch, estimates: Sequence[Estimate], width: int) -> Iterator[str]:
    yield f"time against memory: {counted(len(search.pareto), 'plan')} that no other beats"
    for at in search.pareto:
        one, estimate = search.plans[at], estimates[at]
        dollars = estimate.usd_per_million_tokens
        cost = f"  ${show_usd(dollars.value)}/M tok" if dollars else ""
        figures = f"  {seconds(one.step_s):>9} s  {one.device_bytes / GIB:7,.1f} GiB{cost}  "
        plan = (
            f"{training_layout(one.plan)}, micro-batch {one.plan.micro_batch}, ZeRO-{one.plan.zero}, recompute"
            f" {recompute_words(one.plan.recompute)}, {one.plan.recipe.name}"
        )
        yield from wrapped(plan, width, initial_indent=figures, subsequent_indent=" " * len(figures))


def _techniques(rows: Sequence[Technique], width: int) -> Iterator[str]:
    yield "techniques of #1"
    cells = [
        [
            row.name, row.cuts, row.collective, row.per_step, row.runs_on,
            "–" if row.exposed_s is None else f"{row.exposed_s:.3f}",
            "–" if row.hidden_s is None else f"{row.hidden_s:.3f}",
        ]
        for row in rows
    ]  # fmt: skip
    headers = ("technique", "cuts", "collective", "how often in a step", "runs on", "exposed s", "hidden s")
    yield from render_table(
        headers, cells, align="lllllrr", width=width, yields=("how often in a step", "runs on")
    ).splitlines()


def _waterfall(steps: Sequence[WaterfallStep], width: int) -> Iterator[str]:
    yield "from a naive plan to #1"
    if not steps:
        yield "  no naive plan is legal here"
        return
    rows = []
    before: float | None = None
    for step in steps:
        change = "" if before is None else f"{step.step_s / before - 1:+.1%}"
        memory = f"{step.device_bytes / GIB:,.1f}" + ("" if step.fits else " does not fit")
        rows.append([step.change, seconds(step.step_s), change, memory, bar(step.step_s / steps[0].step_s, 24)])
        before = step.step_s
    yield from render_table(["change", "step s", "", "GiB", ""], rows, align="lrrll", width=width).splitlines()


def _gains(gains: Sequence[Gain]) -> Iterator[str]:
    yield "what 10 % more would buy"
    for gain in gains:
        yield f"  {gain.resource:<24} {gain.gain:6.1%} less time ({seconds(gain.step_s)} s)"


def _least(least: LeastGpus | None) -> Iterator[str]:
    if least is None:
        yield "fewest GPUs: more than there are"
        return
    where = ", optimizer on the host" if least.offload else ""
    yield (
        f"fewest GPUs that hold it: {least.gpus} ({training_layout(least.plan)}, ZeRO-{least.plan.zero}, full recompute{where},"
        f" {least.device_bytes / GIB:,.1f} GiB each)"
    )


def _losers(search: TrainingSearch) -> Iterator[str]:
    yield (
        f"{counted(search.searched, 'plan')} looked at in {search.seconds:.2f} s, {show_count(search.legal)} legal,"
        f" {show_count(search.fitting)} fit; the others"
    )
    for why, count in list(search.rejected.items())[:_MOST_REASONS]:
        yield f"  {show_count(count):>9}  {why}"


def _warnings(estimate: Estimate, width: int) -> Iterator[str]:
    if not estimate.warnings:
        return
    yield "assumed and uncertain"
    for warning in estimate.warnings:
        yield from wrapped(warning.message, width, initial_indent="  - ", subsequent_indent="    ")
