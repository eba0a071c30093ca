"""A plan as llama-server processes. Builds are tagged where the plan names one."""

from __future__ import annotations

from trilemma.engines.deployment import facts
from trilemma.engines.deployment.fleet import EngineGroup, Fleet, FleetAsked, alone, checked_pools, nodes_for
from trilemma.engines.llama_cpp.write import write
from trilemma.errors import InputError

_FACTS = facts.of_engine("llama.cpp")


def fleet(asked: FleetAsked) -> Fleet:
    """The engines of ``asked.plan``. Raises `InputError` also for pools apart."""
    pools = checked_pools(asked.plan)
    if len(pools) > 1:
        raise InputError("llama.cpp runs prompts and answers in one server; take a plan of one pool")
    (pool,) = pools
    named = asked.plan.engine.version and facts.release_text(asked.plan.engine.version, engine="llama.cpp")
    command = write(model=asked.model, plan=alone(asked.plan, pool))
    gpus = int(pool.layout.gpus)
    nodes = nodes_for(gpus, asked.per_node)
    facts_of = f"facts of {facts.release_text(asked.version, engine='llama.cpp')}" if asked.version else "newest build"
    group = EngineGroup(
        role=pool.role,
        replicas=pool.replicas,
        gpus=gpus,
        program=tuple(command[:1]),
        arguments=tuple(command[1:]),
        entry="image",
        nodes=nodes,
    )
    over = f"{gpus} GPUs on {nodes} nodes: llama-server reaches cards of other nodes only over RPC, which no plan describes"
    return asked.fleet(
        engine="llama-cpp",
        label=f"llama.cpp {named or facts_of}",
        weights=command[2],
        image=facts.image("llama.cpp", asked.maker, build=named or ""),
        own=_FACTS,
        groups=(group,),
        unmanaged=over if nodes > 1 else None,
    )
