"""Which precision plan leaves room for the cache: the budget of weights is what an engine has left after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trilemma import engines
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.layouts import check_context, check_layout
from trilemma.estimate.serving import from_start_up
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.models.catalogue import hub_id
from trilemma.plans import Plan
from trilemma.precision.allocate import Frontier, Problem
from trilemma.precision.capability import obstacles, warnings
from trilemma.precision.patterns import groups_of
from trilemma.precision.plan import PrecisionPlan, plan_from_choice
from trilemma.precision.presets import concessions, ladder, preset_plan
from trilemma.quantities import GIB
from trilemma.question import Question
from trilemma.workloads import Serving

#: Share by which an engine's own line of weights may fall short of the sum over tensors (padding, alignment).
_ROUNDING = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightBudget:
    """Bytes of one GPU: what the engine gives itself, what is not weights, and what is left for weights.

    ``cache_bytes`` is what the requests asked for take, ``overhead_bytes`` activations, graphs and workspace inside the
    engine's budget. ``left_bytes`` = usable − cache − overhead. ``stated`` marks a budget given by the user instead (of the
    whole model); then the other figures stay for information.
    """

    usable_bytes: int
    cache_bytes: int
    overhead_bytes: int
    left_bytes: int
    stated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A plan on a cluster: its estimate, the budget of its weights, and whether the accelerator runs it."""

    plan: PrecisionPlan
    estimate: Estimate
    budget: WeightBudget
    obstacles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    within_budget: bool = True

    @property
    def fits(self) -> bool:
        return self.estimate.fits and self.within_budget and not self.obstacles


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedChoice:
    """What was chosen, and what was tried before it with the reason it lost."""

    fitted: Fitted
    tried: tuple[tuple[str, str], ...] = ()


def fit_plan(
    plan: PrecisionPlan, *, cluster: Cluster, workload: Serving, serve: Plan, budget_bytes: int | None = None
) -> Fitted:
    """``plan`` served as ``serve`` says for ``workload``; a cache format that the plan states takes the place of "auto".

    ``budget_bytes`` bounds the weights of the whole model instead of what the engine leaves.
    """
    options = serve.pool.options
    if options.kv_dtype is None and plan.kv_cache != "auto":
        options = replace(options, kv_dtype=plan.kv_cache)
    if options.context is None and workload.longest_request is not None:
        options = replace(options, context=workload.longest_request)
    pool = replace(serve.pool, options=options)
    serve = replace(serve, pools=(pool,))
    if pool.layout.gpus != cluster.gpus:
        raise InputError(f"the layout takes {pool.layout.gpus} GPUs, but `gpu` names {cluster.gpus}")
    check_layout(plan.model, pool.layout)
    check_context(plan.model, options.context)
    engine = engines.get(serve.engine.name)
    start = engine.start_up(
        model=plan.model,
        accelerator=cluster.accelerator,
        layout=pool.layout,
        options=options,
        version=serve.engine.version,
    )
    question = Question(model=plan.model, cluster=cluster, workload=workload, plan=serve, served_as=served_as(plan))
    estimate = from_start_up(start, question)
    inside = [line for line in start.ledger if line.budget == "inside"]
    overhead = sum(float(line.bytes) for line in inside if line.name not in ("weights", "kv_cache", "state_cache"))
    requests = max(1, workload.concurrency or 1)
    cache = float(start.request_bytes) * requests
    usable = int(start.budget_bytes)
    left = int(usable - cache - overhead)
    budget = WeightBudget(
        usable_bytes=usable,
        cache_bytes=int(cache),
        overhead_bytes=int(overhead),
        left_bytes=left if budget_bytes is None else budget_bytes,
        stated=budget_bytes is not None,
    )
    return Fitted(
        plan=plan,
        estimate=estimate,
        budget=budget,
        obstacles=obstacles(plan, cluster.accelerator),
        warnings=warnings(plan, cluster.accelerator),
        within_budget=_weights_bytes(plan, estimate, budget, gpus=cluster.gpus) <= budget.left_bytes,
    )


def _weights_bytes(plan: PrecisionPlan, estimate: Estimate, budget: WeightBudget, *, gpus: int) -> float:
    """Bytes that count against ``budget``: of the whole model where it was stated, else of the worst GPU.

    An engine that leaves layers in host memory shows fewer on the card; the budget is for plans that leave none there but
    the embedding, which llama.cpp looks up on the host.
    """
    if budget.stated:
        return plan.weights_bytes
    shown = float(estimate.memory.ledger["weights"].bytes)
    embedding = sum(tensor.bytes for tensor in plan.model.tensors if tensor.part == "embedding")
    whole = (plan.weights_bytes - embedding) / gpus
    return shown if shown >= (1 - _ROUNDING) * whole else whole


def choose_plan(
    model: Model, *, cluster: Cluster, workload: Serving, serve: Plan, budget_bytes: int | None = None
) -> FittedChoice:
    """The first preset of the ladder that the accelerator runs and that leaves room for the cache.

    All presets are tried with cache and CUDA graphs as they are, then with a narrower cache, then without graphs (unless
    ``serve`` states them). Without one that fits the smallest that runs is the answer, with what it lacks.
    """
    options = serve.pool.options
    candidates = _candidates(model, serve.engine.name)
    tried: list[tuple[str, str]] = []
    smallest: Fitted | None = None
    for cache, eager in concessions(serve.engine.name):
        stated = (cache and options.kv_dtype) or (eager and options.eager)
        if stated or (cache == "fp8" and "fp8" not in cluster.accelerator.hardware_formats):
            continue
        pool = replace(serve.pool, options=replace(options, eager=options.eager or eager))
        served = replace(serve, pools=(pool,))
        for plan in candidates:
            plan = replace(plan, kv_cache=cache) if cache else plan
            label = ", ".join(
                [plan.name, *([f"{cache} cache"] if cache else []), *(["no CUDA graphs"] if eager else [])]
            )
            fitted = fit_plan(plan, cluster=cluster, workload=workload, serve=served, budget_bytes=budget_bytes)
            if fitted.fits:
                return FittedChoice(fitted=fitted, tried=tuple(tried))
            tried.append((label, why_not(fitted)))
            if not fitted.obstacles and (smallest is None or plan.weights_bytes <= smallest.plan.weights_bytes):
                smallest = fitted
    if smallest is None:
        raise InputError(
            f"{cluster.accelerator.name} runs none of {', '.join(ladder(serve.engine.name))}; give --preset or --plan"
        )
    return FittedChoice(fitted=smallest, tried=tuple(tried))


def _candidates(model: Model, engine: str) -> list[PrecisionPlan]:
    """The ladder of ``engine`` over ``model``; a checkpoint that is quantised already comes first, then what is smaller."""
    plans = [preset_plan(model, name) for name in ladder(engine)]
    if model.quantization is None:
        return plans
    published = preset_plan(model, "as-published")
    return [published, *(plan for plan in plans if plan.weights_bytes < published.weights_bytes)]


def served_as(plan: PrecisionPlan) -> str:
    """What to name on the engine's command line: the hub id, or a folder for the checkpoint that has to be made."""
    published = hub_id(plan.model.name)
    if plan.name in ("16-bit", "as-published"):
        return published
    return f"./{published.rpartition('/')[2]}-{plan.name}"


def why_not(fitted: Fitted) -> str:
    """Why a plan lost, in a few words."""
    if fitted.obstacles:
        return fitted.obstacles[0]
    if not fitted.within_budget:
        gpus = fitted.estimate.question.cluster.gpus
        weights = _weights_bytes(fitted.plan, fitted.estimate, fitted.budget, gpus=gpus)
        return (
            f"weights of {weights / GIB:,.2f} GiB, {max(fitted.budget.left_bytes, 0) / GIB:,.2f} GiB are left for them"
        )
    return fitted.estimate.verdict.reason


def measured_plan(
    model: Model,
    problem: Problem,
    *,
    budget_bytes: int | None = None,
    most_kl: float | None = None,
) -> PrecisionPlan:
    """The plan that measured sensitivities propose: least loss within ``budget_bytes`` of all weights, or fewest bytes with
    at most ``most_kl`` nats predicted.

    Raises `InputError` where the sensitivities are of another model, and for budgets that nothing meets.
    """
    own = {group.name: group.elements for group in groups_of(model)}
    measured = dict(zip(problem.groups, problem.elements, strict=True))
    for name, elements in measured.items():
        if own.get(name) != elements:
            raise InputError(
                f"the sensitivities are of a group {name} with {elements:,} parameters, {model.name} has"
                f" {own.get(name, 0):,}; measure the weights of this model"
            )
    rest = preset_plan(model, "16-bit").weights_bytes - sum(
        int(model.dtype.storage_bytes(tensor.shape))
        for group in groups_of(model)
        if group.name in measured
        for tensor in group.tensors
    )
    frontier = Frontier(problem)
    if most_kl is not None:
        found = frontier.least_bytes(most_kl)
        if budget_bytes is not None and found.bytes + rest > budget_bytes:
            raise InputError(
                f"{most_kl:g} nats take {(found.bytes + rest) / GIB:,.2f} GiB of {budget_bytes / GIB:,.2f}; allow more"
            )
    else:
        found = frontier.within((budget_bytes or 0) - rest)
    plan = plan_from_choice(model, found.formats, name="allocated", source="measured sensitivities")
    note = (
        f"KL from full precision {found.loss:.4g} nats per token, predicted as the sum of single groups ({found.how});"
        " measure the whole plan with trilemma precision allocate"
    )
    return replace(plan, notes=(*plan.notes, note))


def bytes_left(model: Model, *, cluster: Cluster, workload: Serving, serve: Plan) -> int:
    """Bytes that all GPUs of the plan leave for weights after cache and overhead, taken from the unquantised plan."""
    fitted = fit_plan(preset_plan(model, "16-bit"), cluster=cluster, workload=workload, serve=serve)
    layout = serve.pool.layout
    return max(fitted.budget.left_bytes, 0) * int(layout.tp) * int(layout.pp)
