"""What would make a training plan fit: settings changed one by one, then together, then more GPUs; each one tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate, Remedy
from trilemma.estimate.training import estimate_training
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import every
from trilemma.plans.recipes import optimizer
from trilemma.plans.training import Offload, Recompute, TrainingPlan
from trilemma.quantities import counted, show_gib
from trilemma.question import Question
from trilemma.search.training_rules import training_violations
from trilemma.workloads import TrainingWorkload

_MOST_GPUS = 1024
_UNCHANGED = "unchanged"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRemedyCandidate:
    """A candidate: what is changed in words and as options, the plan and workload that result, what becomes of the answer."""

    words: str
    flags: str
    plan: TrainingPlan
    workload: TrainingWorkload
    quality: str = _UNCHANGED


def with_training_remedies(
    answer: Estimate, *, model: Model, cluster: Cluster, workload: TrainingWorkload, plan: TrainingPlan, most: int = 3
) -> Estimate:
    """``answer`` with up to ``most`` verified changes where it does not fit: what changes no result first, fastest first."""
    if answer.fits:
        return answer
    found: list[tuple[int, float, TrainingRemedyCandidate, Estimate]] = []
    for change, one in _fitting(model, cluster, _settings(plan, workload)):
        found.append((0, _step_s(one), change, one))
    if not found:
        # Of settings together the first that suffice: more of them only cost more.
        found += [(1, _step_s(one), change, one) for change, one in _fitting(model, cluster, _stacked(plan, workload))][
            :1
        ]
    if len(found) < most:
        found += [(2, _step_s(one), change, one) for change, one in _fitting(model, cluster, _results(plan, workload))]
    if len(found) < most:
        grown = _more_gpus(model, cluster, workload, plan)
        found += [] if grown is None else [(3, 0.0, *grown)]
    best = sorted(found, key=lambda one: (one[0], one[1]))[:most]
    return replace(
        answer, remedies=tuple(_remedy(at, answer, change, one) for at, (_, _, change, one) in enumerate(best))
    )


def _fitting(
    model: Model, cluster: Cluster, changes: Iterator[TrainingRemedyCandidate]
) -> Iterator[tuple[TrainingRemedyCandidate, Estimate]]:
    """Changes with which the plan fits, with what it then costs."""
    for change in changes:
        answer = _tried(model, cluster, change)
        if answer is not None and answer.fits:
            yield change, answer


def _settings(plan: TrainingPlan, workload: TrainingWorkload) -> Iterator[TrainingRemedyCandidate]:
    """Single settings that leave every result as it is."""
    for step in _leaner(plan):
        changed = step(plan)
        if changed is not None:
            yield TrainingRemedyCandidate(words=changed[0], flags=changed[1], plan=changed[2], workload=workload)
    if every()[plan.implementation].cuts:
        for factor in (2, 4, 8):
            tp, dp = int(plan.layout.tp) * factor, int(plan.layout.dp)
            if dp % factor == 0:
                cut = replace(plan, layout=replace(plan.layout, tp=tp, dp=dp // factor))
                yield TrainingRemedyCandidate(
                    words=f"tensor parallel {tp}", flags=f"--tp {tp}", plan=cut, workload=workload
                )


def _stacked(plan: TrainingPlan, workload: TrainingWorkload) -> Iterator[TrainingRemedyCandidate]:
    """The same settings together, one more at a time, from the cheapest to the slowest."""
    words: list[str] = []
    flags: list[str] = []
    now = plan
    for step in _leaner(plan):
        changed = step(now)
        if changed is None:
            continue
        words.append(changed[0])
        flags.append(changed[1])
        now = changed[2]
        if len(words) > 1:
            yield TrainingRemedyCandidate(words=" and ".join(words), flags=" ".join(flags), plan=now, workload=workload)


_Step = Callable[[TrainingPlan], tuple[str, str, TrainingPlan] | None]


def _leaner(plan: TrainingPlan) -> Iterator[_Step]:
    """Settings that need less memory, cheapest in time first; each is None where the plan has it already."""
    yield _recomputed
    yield _one_sequence
    if int(plan.layout.dp) * int(plan.layout.cp) > 1:
        yield _sharded
    yield _offloaded("optimizer")
    if int(plan.layout.pp) == 1 and every()[plan.implementation].offloads_weights:
        yield _offloaded("weights")


def _recomputed(plan: TrainingPlan) -> tuple[str, str, TrainingPlan] | None:
    if plan.recompute.mode == "full" and plan.recompute.layers is None:
        return None
    leaner = replace(plan, recompute=Recompute(mode="full"), offload=replace(plan.offload, activations=0.0))
    return "layers computed again in backward (gradient checkpointing)", "--recompute full", leaner


def _one_sequence(plan: TrainingPlan) -> tuple[str, str, TrainingPlan] | None:
    if int(plan.micro_batch) == 1:
        return None
    return "micro-batches of 1, more of them", "--micro-batch 1", replace(plan, micro_batch=1)


def _sharded(plan: TrainingPlan) -> tuple[str, str, TrainingPlan] | None:
    most = 3 if int(plan.layout.pp) == 1 or every()[plan.implementation].shards_beside_pipeline else 1
    if plan.zero >= most:
        return None
    return f"state sharded over the replicas (ZeRO-{most})", f"--zero {most}", replace(plan, zero=most)


def _offloaded(part: str) -> _Step:
    def step(plan: TrainingPlan) -> tuple[str, str, TrainingPlan] | None:
        if getattr(plan.offload, part) == 1.0 or (part == "weights" and plan.zero < 3):
            return None
        offload = replace(plan.offload, **{part: 1.0})
        return f"{part} on the host", f"--offload {_offload_word(offload)}", replace(plan, offload=offload)

    return step


def _offload_word(offload: Offload) -> str:
    shares = {name: getattr(offload, name) for name in ("optimizer", "weights", "activations")}
    return ",".join(name if share == 1 else f"{name}={share:g}" for name, share in shares.items() if share)


def _results(plan: TrainingPlan, workload: TrainingWorkload) -> Iterator[TrainingRemedyCandidate]:
    """Settings that may change what is learnt, on the leanest plan of the others."""
    lean, given = plan, []
    for step in (_recomputed, _one_sequence, _sharded):
        changed = step(lean)
        if changed is not None and (step is not _sharded or int(plan.layout.dp) > 1):
            given.append(changed[1])
            lean = changed[2]
    flags = "".join(f"{one} " for one in given)
    if workload.method == "full":
        small = replace(lean, optimizer=optimizer("adamw-8bit"))
        told = "moments in 8 bits, which trains alike in published runs"
        yield TrainingRemedyCandidate(
            words="8-bit AdamW", flags=f"{flags}--optimizer adamw-8bit", plan=small, workload=workload, quality=told
        )
        adapters = replace(workload, method="lora", rank=16)
        told = "adapters alone are trained"
        yield TrainingRemedyCandidate(
            words="LoRA", flags=f"{flags}--method lora", plan=lean, workload=adapters, quality=told
        )
    if workload.method in ("full", "lora"):
        quantised = replace(workload, method="qlora", rank=workload.rank or 16)
        told = "adapters alone are trained, on weights in 4 bits"
        yield TrainingRemedyCandidate(
            words="QLoRA", flags=f"{flags}--method qlora", plan=lean, workload=quantised, quality=told
        )


def _more_gpus(
    model: Model, cluster: Cluster, workload: TrainingWorkload, plan: TrainingPlan
) -> tuple[TrainingRemedyCandidate, Estimate] | None:
    """The fewest GPUs, doubling, that hold the job with state sharded, layers recomputed and one sequence a pass."""
    lean = replace(plan, micro_batch=1, recompute=Recompute(mode="full"))
    sharded = _sharded(lean)
    lean = sharded[2] if sharded is not None else lean
    gpus = cluster.gpus * 2
    while gpus <= _MOST_GPUS:
        layout = replace(lean.layout, dp=int(lean.layout.dp) * gpus // cluster.gpus)
        per_node = max(cluster.gpus_per_node, min(gpus, cluster.accelerator.gpus_per_node))
        grown = replace(cluster, gpus=gpus, gpus_per_node=per_node)
        flags = f"--gpu {cluster.accelerator.id}:{gpus} --zero {lean.zero} --recompute full --micro-batch 1"
        words = f"{counted(gpus, 'GPU')}, state sharded over them and layers computed again"
        change = TrainingRemedyCandidate(words=words, flags=flags, plan=replace(lean, layout=layout), workload=workload)
        answer = _tried(model, grown, change)
        if answer is not None and answer.fits:
            return change, answer
        gpus *= 2
    return None


def _tried(model: Model, cluster: Cluster, change: TrainingRemedyCandidate) -> Estimate | None:
    """The change's estimate; None where no framework runs it."""
    broken = training_violations(model, change.plan, change.workload, gpus=cluster.gpus)
    if any(bool(one.any()) for one in broken.values()):
        return None
    try:
        return estimate_training(Question(model=model, cluster=cluster, workload=change.workload, plan=change.plan))
    except InputError:
        return None


def _step_s(answer: Estimate) -> float:
    assert answer.speed is not None
    assert answer.speed.step_s is not None
    return answer.speed.step_s.interval.value


def _remedy(rank: int, failing: Estimate, change: TrainingRemedyCandidate, answer: Estimate) -> Remedy:
    need = answer.memory.total.value
    before, after = _step_s(failing), _step_s(answer)
    sure = answer.verdict.probability
    chance = "more than 99 %" if sure > 0.99 else f"{sure:.0%}"
    effect = f"fits: {show_gib(need)} GiB, {chance} sure, {after:,.3g} s a step"
    if answer.question.cluster.gpus == failing.question.cluster.gpus and after > before:
        effect += f" ({after / before - 1:.0%} more)"
    host = answer.host_memory
    if host:
        effect += f"; {host['words']}"
    return Remedy(change=change.words, flags=change.flags, effect=effect, quality=change.quality, cost_rank=float(rank))
