"""An engine's command judged: predicted, or with the measured lines of a start-up log in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trilemma import engines
from trilemma.engines.base import EngineCommand, KvPool, Stage, StartUp
from trilemma.engines.in_force import refusals
from trilemma.engines.start_log import StartUpLog
from trilemma.errors import InputError, PlanWarning
from trilemma.estimate.doubt import with_warnings
from trilemma.estimate.estimate import Estimate, Verdict
from trilemma.estimate.layouts import check_layout
from trilemma.estimate.measured import LogComparison, compare, given_lines
from trilemma.estimate.pool_start import check_kinds, check_positions
from trilemma.estimate.reasons import reason
from trilemma.estimate.serving import estimate, from_start_up
from trilemma.hardware.cluster import Cluster
from trilemma.quantities import GIB
from trilemma.question import ServingQuestion

#: Memory totals of one kind of card differ by less than this between drivers.
_SAME_CARD = 0.05
#: Share of a card above which an estimate of CUDA graphs is no longer believed (measured: 0.46 to 6.3 GB a card).
_PLAUSIBLE_GRAPHS = 0.10


def check_command(command: EngineCommand, question: ServingQuestion, *, log: StartUpLog | None = None) -> Estimate:
    """Will ``command``, whose plan ``question`` asks about, start on its cards, and if not, where does it die?

    ``refused`` says why the engine's parser would refuse it, where it would; the rest is then of the command
    without the words refused.
    With ``log``, lines that the engine measured replace ours for the stages after them, each figure is listed predicted
    beside measured, and the first that lies outside our interval is named. Raises `InputError`.
    """
    if log is None:
        answer = estimate(question)
        answer = replace(answer, refused=(*answer.refused, *refusals(command)))
    else:
        answer = measured_start(question, log)
    return with_warnings(answer, command.warnings)


def measured_start(question: ServingQuestion, told: StartUpLog) -> Estimate:
    """The answer to ``question`` with what the start of its engine measured, each figure listed beside the one predicted."""
    model, cluster, plan = question.model, question.cluster, question.plan
    check_kinds(plan.engine.name, cluster)
    pool, path = plan.pool, told.path
    if plan.engine.version is None and told.version is not None:
        plan = replace(plan, engine=replace(plan.engine, version=told.version))
    check_layout(model, pool.layout)
    check_positions(model, pool, plan.engine.name, longest=question.workload.least_request)
    engine = engines.get(plan.engine.name)
    figures = {name: (one.value, f"{path}:{one.line_number}") for name, one in told.measured.items()}
    capacity = figures["capacity_bytes"][0] if "capacity_bytes" in figures else None

    def start(**options: Any) -> StartUp:
        return engine.start_up(
            model=model, accelerator=cluster.accelerator, layout=pool.layout, options=replace(pool.options, **options),
            draft=pool.draft, version=plan.engine.version, free_bytes=question.free_bytes, capacity_bytes=capacity,
        )  # fmt: skip

    def pool_of(n_bytes: int) -> KvPool:
        return start(kv_cache_bytes=n_bytes).pool

    predicted = start()
    if "gpu_blocks" in figures and "kv_cache_bytes" not in figures:  # early engines print blocks, no GiB
        blocks, where = figures["gpu_blocks"]
        sized = start(extra={**pool.options.extra, "num-gpu-blocks-override": int(blocks)})
        figures["kv_cache_bytes"] = (float(sized.pool.available_bytes), where)
    _check_pool(figures, capacity, cluster)
    joined = given_lines(predicted, {name: value for name, (value, _) in figures.items()}, pool_of=pool_of, source=path)
    answer = from_start_up(joined, replace(question, plan=plan))
    compared = compare(predicted, figures)
    verdict = answer.verdict
    if told.outcome is not None:
        text = "the log says that it starts"
        if told.outcome != "ok":
            said = "the log says so" if told.reason is None else f"the log says so: {told.reason.text.rstrip('.')}"
            text = f"{said}; {_beside_ledger(answer, told.outcome, joined)}"
        verdict = Verdict(stage=told.outcome, probability=1.0, reason=text, measured=True)
    warnings = (*_other_card(capacity, cluster), *_graph_estimate(figures, cluster), *_divergence(compared))
    warnings = (*warnings, *answer.warnings)
    return replace(answer, verdict=verdict, measured=tuple(compared), warnings=warnings)


def _beside_ledger(answer: Estimate, stage: Stage, start: StartUp) -> str:
    """What the ledger says of a start that the log saw fail: the sum that does not come out, or that it does."""
    if answer.verdict.stage != "ok":
        return reason(answer.verdict.stage, start)
    taken, card = float(start.ledger.total()) / GIB, float(start.capacity_bytes) / GIB
    return (
        f"the ledger takes {taken:,.2f} of {card:,.2f} GiB and {reason('ok', start)}: {max(card - taken, 0):,.2f} GiB are taken"
        f" that it does not know of at {stage}, by other processes or by what is not counted"
    )


def _other_card(capacity: float | None, cluster: Cluster) -> tuple[PlanWarning, ...]:
    """A log of another card than the one named says nothing of it."""
    from trilemma.hardware.memory import runtime_total

    known = runtime_total(cluster.accelerator).interval.value
    if capacity is None or abs(capacity / known - 1) < _SAME_CARD:
        return ()
    message = (
        f"the log is of a card of {capacity / GIB:.2f} GiB, {cluster.accelerator.name} has {known / GIB:.2f}: is it the log of"
        " this command?"
    )
    return (PlanWarning(code="log-of-another-card", message=message),)


def _check_pool(figures: Mapping[str, tuple[float, str]], capacity: float | None, cluster: Cluster) -> None:
    """Raises `InputError` for a cache pool that the card of the log, or else the one named, could not hold."""
    from trilemma.hardware.memory import runtime_total

    n_bytes, where = figures.get("kv_cache_bytes", (0.0, ""))
    if n_bytes > (capacity or runtime_total(cluster.accelerator).interval.value):
        raise InputError(
            f"{where}: a cache pool of {n_bytes / GIB:.4g} GiB per GPU is more than the card holds; name the card and the"
            " model of the log"
        )


def _graph_estimate(figures: Mapping[str, tuple[float, str]], cluster: Cluster) -> tuple[PlanWarning, ...]:
    """Graphs measure some GiB; an estimate far above is the estimator's fault, and it is taken from the cache pool.

    vllm-project/vllm issue 53013: 118.65 GiB estimated, and the engine ran once the estimate was off.
    """
    from trilemma.hardware.memory import runtime_total

    estimated, where = figures.get("cuda_graph_estimate_bytes", (0.0, ""))
    if estimated <= _PLAUSIBLE_GRAPHS * runtime_total(cluster.accelerator).interval.value:
        return ()
    message = (
        f"the engine estimates {estimated / GIB:.2f} GiB for CUDA graphs ({where}), which is not plausible and is taken from"
        " the cache pool: set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 and keep a lower --gpu-memory-utilization"
    )
    return (PlanWarning(code="implausible-graph-estimate", message=message),)


def _divergence(compared: list[LogComparison]) -> tuple[PlanWarning, ...]:
    first = next((one for one in compared if one.diverges), None)
    if first is None:
        return ()
    name = first.name.removesuffix("_bytes").replace("_", " ")
    message = (
        f"first divergence from the log: {name} measured {first.measured / GIB:.2f} GiB ({first.where}),"
        f" predicted {first.predicted / GIB:.2f} ({first.low / GIB:.2f} to {first.high / GIB:.2f})"
    )
    return (PlanWarning(code="divergence", message=message),)
