"""A plan as the one server of a machine, told its model by a client: programs of desks, which no container holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trilemma.engines import traits_of
from trilemma.engines.deployment import facts
from trilemma.engines.deployment.fleet import EngineGroup, Fleet, FleetAsked, checked_pools, nodes_for
from trilemma.errors import InputError


def fleet_of(
    engine: str,
    command: Sequence[str],
    *,
    asked: FleetAsked,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    asked_as: str | None = None,
) -> Fleet:
    """``command`` (NAME=value words first) as a script of ``engine``, with shell lines ``before`` and ``after`` it; clients ask
    for ``asked_as``, where that is not the model's word.

    Raises `InputError` for pools apart, for more than one such server and for plans of several machines.
    """
    label, own = traits_of(engine).label, facts.of_engine(engine)
    plan, version = asked.plan, asked.version
    pools = checked_pools(plan)
    if len(pools) > 1:
        raise InputError(f"{label} runs prompts and answers in one server; take a plan of one pool")
    (pool,) = pools
    if pool.replicas > 1 or nodes_for(int(pool.layout.gpus), asked.per_node) > 1:
        raise InputError(
            f"{label} is written as one server of one machine; take a plan without --replicas and further nodes"
        )
    at = next(at for at, word in enumerate(command) if "=" not in word)
    environment = tuple((name, value) for name, _, value in (word.partition("=") for word in command[:at]))
    release = (
        facts.release_text(plan.engine.version or version or "", engine=engine)
        if plan.engine.version or version
        else ""
    )
    return asked.fleet(
        engine=engine,
        label=f"{label} {release}".strip(),
        image=None,
        own=own,
        groups=(
            EngineGroup(
                role=pool.role, replicas=1, gpus=int(pool.layout.gpus), program=tuple(command[at : at + 2]),
                arguments=tuple(command[at + 2 :]), entry="command", files=files or {}, environment=environment,
                before=tuple(before), after=tuple(after),
            ),
        ),
        beside=beside or {},
        asked_as=asked_as,
        notes=tuple(notes),
        unmanaged="it is a program of one desk and takes its model from a client",
    )  # fmt: skip
