"""One serving plan in full: what the engine does with the card, whether it starts, how fast it runs and what that costs."""

from __future__ import annotations

from dataclasses import replace

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.deployment.facts import of_maker
from trilemma.engines.generating import asked_to_pool, document_behind, generates_nothing
from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate, Verdict
from trilemma.estimate.number_formats import refused_formats
from trilemma.estimate.pool_start import start_pool, with_context
from trilemma.estimate.pooling import pooling_speed
from trilemma.estimate.reasons import reason
from trilemma.estimate.sections import assembled, cache_of, memory_of, printed_lines
from trilemma.estimate.slots import with_slots
from trilemma.estimate.speed import plan_speed
from trilemma.estimate.start_up_time import start_up_time
from trilemma.hardware.cluster import Cluster
from trilemma.plans import Pool
from trilemma.quantities import counted
from trilemma.question import ServingQuestion


def estimate(question: ServingQuestion) -> Estimate:
    """What the plan of ``question`` costs: ledger, cache, verdict, speed, price and power, each with an interval.

    A plan has one pool, of one engine or of several side by side that share the load evenly, or a prefill and a decode pool.
    Raises `InputError` for layouts that the engine refuses and for GPUs that the plan does not use up (two pools may leave
    some idle).
    """
    plan = question.plan
    plan = replace(
        plan, pools=tuple(with_slots(with_context(pool, question.workload), question) for pool in plan.pools)
    )
    question = replace(question, plan=plan)
    if len(plan.pools) > 1:
        from trilemma.estimate.disaggregated import estimate_pools  # one pool needs none of it

        return estimate_pools(question)
    _check_gpus(plan.pool, question.cluster)
    return from_start_up(start_pool(plan.pool, question), question)


def from_start_up(start: StartUp, question: ServingQuestion) -> Estimate:
    """The estimate of a plan of one pool whose start-up is known, predicted or with measured lines put in."""
    plan, engine = question.plan, engines.get(question.plan.engine.name)
    stage, probability = engine.likeliest_stage(start)
    pools = generates_nothing(question.model, plan.engine.name, plan.pools[-1].options.extra)
    timed = pooling_speed if pools else plan_speed
    speed = timed(start, question) if stage == "ok" else None
    return assembled(
        start,
        question,
        verdict=Verdict(stage=stage, probability=probability, reason=reason(stage, start)),
        memory=memory_of(start),
        cache=cache_of(start, plan.pool.layout) if start.pool.bytes_per_token_per_gpu else None,
        speed=speed,
        start_up=printed_lines(start, engine),
        start_up_time=start_up_time(start, question, plan.pool) if stage == "ok" else None,
        command=_command(question),
        refused=tuple(refused_formats(question)),
    )


def _command(question: ServingQuestion) -> str:
    """The command of one engine; told its cards where it would take those of the copies beside it too."""
    plan = asked_to_pool(question.plan, question.model)
    variables = []
    if plan.pool.replicas > 1 and engines.traits_of(plan.engine.name).takes_every_card:
        cards = ",".join(str(card) for card in range(plan.pool.gpus // plan.pool.replicas))
        variables = [f"{of_maker(question.cluster.accelerator.vendor.lower())['visible']}={cards}"]
    more = document_behind(plan, question.model)
    return engines.get(plan.engine.name).line(model=question.named, plan=plan, more=more, variables=variables)


def _check_gpus(pool: Pool, cluster: Cluster) -> None:
    layout = pool.layout
    if pool.gpus != cluster.gpus:
        times = f"{counted(pool.replicas, 'replica')} of " if pool.replicas > 1 else ""
        raise InputError(
            f"{times}`tp` {layout.tp} x `pp` {layout.pp} x `dp` {layout.dp} takes {counted(pool.gpus, 'GPU')},"
            f" but `gpu` names {cluster.gpus}"
        )
