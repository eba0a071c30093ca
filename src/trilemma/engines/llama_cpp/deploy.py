"""A plan as llama-server processes. Builds are tagged where the plan names one."""

from __future__ import annotations

from trilemma.engines.deployment import facts
from trilemma.engines.deployment.fleet import EngineGroup, Fleet, alone, checked_pools, nodes_for
from trilemma.engines.llama_cpp.write import write
from trilemma.errors import InputError
from trilemma.plans import Plan

_FACTS = facts.of_engine("llama.cpp")


def fleet(
    *,
    model: str,
    plan: Plan,
    version: str | None,
    maker: str,
    per_node: int | None,
    latent: bool | None = None,  # noqa: ARG001 - one signature for all engines
) -> Fleet:
    """The engines of ``plan``; arguments as `trilemma.engines.vllm.deploy.fleet`. Raises `InputError` also for pools apart."""
    pools = checked_pools(plan)
    if len(pools) > 1:
        raise InputError("llama.cpp runs prompts and answers in one server; take a plan of one pool")
    (pool,) = pools
    named = plan.engine.version and facts.release_text(plan.engine.version, engine="llama.cpp")
    command = write(model=model, plan=alone(plan, pool))
    gpus = int(pool.layout.gpus)
    nodes = nodes_for(gpus, per_node)
    facts_of = f"facts of {facts.release_text(version, engine='llama.cpp')}" if version else "newest build"
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
    return Fleet(
        engine="llama-cpp",
        label=f"llama.cpp {named or facts_of}",
        model=model,
        weights=command[2],
        maker=maker,
        image=facts.image("llama.cpp", maker, build=named or ""),
        port=_FACTS["port"],
        health=_FACTS["health"],
        groups=(group,),
        per_node=per_node,
        unmanaged=over if nodes > 1 else None,
    )
