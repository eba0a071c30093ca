"""One training plan judged, or the best ones searched."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.ask.answers import Answer
from trilemma.ask.nouns import cluster_of, model_of, storage_rate
from trilemma.ask.options import fields_of
from trilemma.ask.reading import number
from trilemma.ask.training_options import TRAINING
from trilemma.errors import InputError, UnknownName, shorten
from trilemma.plans.training import Offload, Recompute, TrainingPlan
from trilemma.quantities import parse_count
from trilemma.question import Question
from trilemma.workloads import TrainingWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trilemma.ask.compared import TrainingCardsCompared
    from trilemma.ask.searched import TrainingPlans
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.architecture import Model
    from trilemma.plans.training import Implementation, Schedule
    from trilemma.search.training_layouts import TrainingConstraints

#: Plans that a search may show, and cards that a comparison may set side by side.
_MOST_SHOWN, MOST_CARDS = 100, 16
#: What ``offload`` takes: where each part of the state goes.
_OFFLOADS = ("none", "optimizer", "masters", "activations", "weights")
_UNITS = {"t": 1e12, "b": 1e9}


def one_plan(
    model: Any, gpu: Any, options: SimpleNamespace, *, plan: TrainingPlan | None, workload: TrainingWorkload | None
) -> Answer:
    """One training plan in full; what is not settled is the implementation's plainest."""
    return judged(training_question(model, gpu, options, plan=plan, workload=workload), run_terms(options))


def training_question(
    model: Any, gpu: Any, options: SimpleNamespace, *, plan: TrainingPlan | None = None,
    workload: TrainingWorkload | None = None,
) -> Question[TrainingWorkload, TrainingPlan]:  # fmt: skip
    """The question of one training plan, unanswered."""
    from trilemma.search.training_single import single_training_plan

    named, cluster, load, settled = _asked(model, gpu, options, workload)
    plan = plan or single_training_plan(named, cluster.accelerator, load, settled, gpus=cluster.gpus)
    return Question(model=named, cluster=cluster, workload=load, plan=plan)


def judged(question: Question[TrainingWorkload, TrainingPlan], terms: dict[str, Any] | None = None) -> Answer:
    """The answer to one question, with remedies where its plan does not fit; ``terms`` are those of a run (`run_terms`)."""
    from trilemma.estimate.training import estimate_training
    from trilemma.search.training_remedies import with_training_remedies

    answer = estimate_training(question, **(terms or {}))
    return Answer.of(
        with_training_remedies(
            answer, model=question.model, cluster=question.cluster, workload=question.workload, plan=question.plan
        )
    )


def search(model: Any, gpu: Any, options: SimpleNamespace, *, workload: TrainingWorkload | None) -> TrainingPlans:
    """The best training plans of all layouts, and what follows from them."""
    from trilemma.ask.searched import TrainingPlans
    from trilemma.estimate.training_price import step_of
    from trilemma.search.techniques import techniques
    from trilemma.search.training import search_training
    from trilemma.search.training_questions import least_gpus, sensitivity, waterfall
    from trilemma.search.training_scaling import scaling

    if not 1 <= options.top <= _MOST_SHOWN:
        raise InputError(f"`top` {options.top} is out of range; give 1 to {_MOST_SHOWN}")
    named, cluster, load, settled = _asked(model, gpu, options, workload)
    found = search_training(named, cluster, load, settled=settled, top=options.top)
    terms = run_terms(options)
    plans = tuple(_estimated(named, cluster, load, one.plan, terms) for one in found.plans)
    nearest = None
    if not plans and found.table.nearest is not None:
        nearest = _estimated(named, cluster, load, found.table.nearest, terms)
    best = found.plans[0].plan if plans else None
    return TrainingPlans(
        model=named,
        cluster=cluster,
        workload=load,
        search=found,
        plans=plans,
        nearest=nearest,
        gains=sensitivity(named, cluster, load, found),
        least=least_gpus(named, cluster, load, settled),
        waterfall=tuple(waterfall(named, cluster, load, found)),
        scaling=scaling(named, cluster, load, settled, terms) if options.scale else (),
        techniques=()
        if best is None
        else tuple(techniques(named, cluster, best, load, step_of(named, cluster, best, load))),
    )


def side_by_side(
    model: Any, gpus: Sequence[Any], options: SimpleNamespace, *, workload: TrainingWorkload | None
) -> TrainingCardsCompared:
    """Each of ``gpus`` with its best plan of one training job."""
    from trilemma.ask.compared import TrainingCardsCompared
    from trilemma.search.compare_training import training_candidate

    if not 1 <= len(gpus) <= MOST_CARDS:
        raise InputError(f"{len(gpus)} `gpu` to compare; give 1 to {MOST_CARDS}")
    asked = [_asked(model, gpu, options, workload) for gpu in gpus]
    named, _, load, _ = asked[0]
    terms = run_terms(options)
    candidates = tuple(training_candidate(named, cluster, load, settled, terms) for _, cluster, _, settled in asked)
    return TrainingCardsCompared(model=named, workload=load, candidates=candidates)


def run_terms(options: SimpleNamespace) -> dict[str, Any]:
    """How a run fails and writes checkpoints, as keywords of an estimate; a run whose length is not stated has neither."""
    from trilemma.timing.training_run import Checkpoints, Failures

    if options.tokens is None:
        for name in ("mtbf", "restart", "spares", "storage"):
            if getattr(options, name) is not None:
                raise InputError(f"`{name}` needs the length of the run; give `tokens`, such as 2B")
        return {}
    if options.mtbf is not None and not 0 <= options.mtbf < math.inf:
        raise InputError(f"`mtbf` {options.mtbf:g} is out of range; give GPU-hours above 0, or 0 for no interruptions")
    if options.restart is not None and not 0 < options.restart < math.inf:
        raise InputError(f"`restart` {options.restart:g} is out of range; give seconds above 0")
    storage = None if options.storage is None else storage_rate(options.storage)
    checkpoints = Checkpoints(storage_bytes_per_s=storage, asynchronous=not options.sync_checkpoints)
    if options.mtbf == 0:
        return {"checkpoints": checkpoints}
    usual = Failures()
    failures = Failures(
        gpu_hours_between=usual.gpu_hours_between if options.mtbf is None else options.mtbf,
        restart_s=usual.restart_s if options.restart is None else options.restart,
        # without a word on spares a failed accelerator is replaced within the restart
        repair_s=usual.repair_s if options.spares is not None else usual.restart_s,
        spares=options.spares or 0,
    )
    return {"failures": failures, "checkpoints": checkpoints}


def _estimated(
    model: Model, cluster: Cluster, workload: TrainingWorkload, plan: TrainingPlan, terms: dict[str, Any]
) -> Answer:
    from trilemma.estimate.training import estimate_training

    return Answer.of(
        estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=plan), **terms)
    )  # fmt: skip


def _asked(
    model: Any, gpu: Any, options: SimpleNamespace, workload: TrainingWorkload | None
) -> tuple[Model, Cluster, TrainingWorkload, TrainingConstraints]:
    named = model_of(model, options.models)
    return named, cluster_of(gpu, options), workload or training_workload_of(options), settled_of(options)


def training_workload_of(options: SimpleNamespace) -> TrainingWorkload:
    """The training load of the options."""
    if options.seq is None:
        raise InputError("training needs `train` SEQ, such as `train` 8192")
    if options.global_batch is None:
        raise InputError("training needs `global_batch` B, such as `global_batch` 512 (sequences of an optimizer step)")
    rank = options.rank if options.rank is not None else 16
    from trilemma.plans.frameworks import every

    kept = every()[_implementation(options)[0]].kept_beside_quantised if options.method == "qlora" else None
    return TrainingWorkload(
        seq=options.seq,
        global_batch=options.global_batch,
        method=options.method,
        rank=rank if options.method != "full" else 0,
        targets=_parts(options.targets),
        kept_format=kept,
        tokens=_tokens(options.tokens),
    )


def settled_of(options: SimpleNamespace) -> TrainingConstraints:
    """What the options settle, checked; names that are not known raise `UnknownName`."""
    from typing import get_args

    from trilemma.plans.recipes import optimizer, recipe
    from trilemma.plans.training import Schedule as Schedules
    from trilemma.search.training_layouts import TrainingConstraints

    implementation, version = _implementation(options)
    schedule: Schedule | None = options.schedule
    if schedule is not None and schedule not in get_args(Schedules):
        raise UnknownName("schedule", schedule, get_args(Schedules), hint=f"known: {', '.join(get_args(Schedules))}")
    recipes = _parts(options.precision)
    for name in recipes:
        recipe(name)
    if options.optimizer is not None:
        optimizer(options.optimizer)
    return TrainingConstraints(
        **fields_of("degree", options, TRAINING),
        micro_batch=options.micro_batch,
        zero=options.zero,
        sp=options.sp,
        recompute=recompute_of(options.recompute),
        schedule=schedule,
        recipes=recipes,
        optimizer=options.optimizer,
        dispatcher=options.dispatcher,
        overlap_expert=bool(options.overlap_expert),
        cuda_graphs=bool(options.cuda_graphs or options.step_graph),
        step_graph=bool(options.step_graph),
        fused_experts=bool(options.fused_experts),
        shard_group=options.shard_group,
        loss=options.loss,
        loss_tile=options.loss_tile,
        mlp_tiles=options.mlp_tiles,
        offload=offload_of(options.offload),
        implementation=implementation,
        version=version,
    )


def _implementation(options: SimpleNamespace) -> tuple[Implementation, str | None]:
    """The framework that the options name, or the one that is meant where none is named, and its version."""
    from trilemma.plans.frameworks import default_for

    return implementation_of(options.engine or default_for("full" if options.method == "full" else "adapters"))


def implementation_of(text: str) -> tuple[Implementation, str | None]:
    """``torchtitan@0.3`` → its implementation and version. Raises `UnknownName`."""
    from trilemma.plans.frameworks import names

    name, _, version = text.partition("@")
    found = names().get(name.strip().lower())
    if found is None:
        raise UnknownName("training engine", name, names(), hint=f"known: {', '.join(names())}")
    return found, version or None


def recompute_of(given: Any) -> Recompute | None:
    """``none``, ``full``, ``full:4`` (layers a stage), ``selective``, ``selective:core_attn,mlp``, ``op``."""
    if given is None or isinstance(given, Recompute):
        return given
    text = str(given)
    mode, _, rest = text.partition(":")
    if mode == "full" and rest:
        if not rest.isdigit():
            raise InputError(f"`recompute` {shorten(text)!r}: full takes a number of layers, such as full:4")
        return Recompute(mode="full", layers=int(rest))
    parts = tuple(part for part in rest.split(",") if part)
    return Recompute(mode=mode, parts=parts)  # type: ignore[arg-type]  # checked at construction


def offload_of(given: Any) -> Offload | None:
    """``optimizer``, ``optimizer=0.5,activations``, ``none``."""
    if given is None or isinstance(given, Offload):
        return given
    shares: dict[str, float] = {}
    for part in str(given).split(","):
        name, sign, share = part.strip().partition("=")
        if name not in _OFFLOADS:
            raise InputError(f"`offload` {shorten(name)!r} is not known; use {', '.join(_OFFLOADS)}")
        if name == "none":
            continue
        try:
            shares[name] = number(share) if sign else 1.0
        except InputError as error:
            raise InputError(f"`offload` {name}: {error}") from None
    return Offload(**shares)


def _tokens(given: Any) -> float | None:
    """``15T``, ``300B`` or a number: tokens of the run."""
    if given is None:
        return None
    text = str(given).strip()
    unit = _UNITS.get(text[-1:].lower())
    try:
        if unit:
            return number(text[:-1]) * unit
    except InputError as error:
        raise InputError(f"`tokens` {shorten(text)!r}: {error}; give a length such as 15T or 300B") from None
    return number(given) if isinstance(given, int | float) else float(parse_count(text, what="`tokens`", decimal=True))


def _parts(given: Any) -> tuple[str, ...]:
    parts = (given or "").split(",") if given is None or isinstance(given, str) else given
    return tuple(part.strip() for part in parts if part.strip())
