"""A plan as LMDeploy servers."""

from __future__ import annotations

from dataclasses import replace

from trilemma.engines.deployment import facts
from trilemma.engines.deployment.fleet import EngineGroup, Fleet, FleetAsked, alone, checked_pools, nodes_for
from trilemma.engines.lmdeploy.flags import table
from trilemma.engines.lmdeploy.write import write
from trilemma.errors import InputError

_FACTS = facts.of_engine("lmdeploy")


def fleet(asked: FleetAsked) -> Fleet:
    """The engines of ``asked.plan``. Whole replicas (``--dp`` without experts in common) are servers of their own. Raises
    `InputError` also for pools apart."""
    plan, release = facts.released(asked.plan, asked.version, table().versions, engine="LMDeploy")
    pools = checked_pools(plan)
    if len(pools) > 1:
        raise InputError("LMDeploy is written as one pool; take a plan without prefill and decode apart")
    (pool,) = pools
    own = alone(plan, pool)
    copies = 1 if int(pool.layout.ep) > 1 else int(pool.layout.dp)
    if copies > 1:
        own = replace(own, pools=(replace(own.pool, layout=replace(pool.layout, dp=1)),))
    command = write(model=asked.model, plan=own)
    gpus = int(pool.layout.gpus) // copies
    nodes = nodes_for(gpus, asked.per_node)
    group = EngineGroup(
        role=pool.role,
        replicas=pool.replicas * copies,
        gpus=gpus,
        program=tuple(command[:3]),
        arguments=(*command[3:], "--server-port", str(_FACTS["port"])),
        entry="command",
        nodes=nodes,
    )
    over = f"{gpus} GPUs on {nodes} nodes start by --nnodes, --node-rank and --dist-init-addr on each node, which is not written"
    return asked.fleet(
        engine="lmdeploy",
        label=f"LMDeploy {release}",
        image=facts.image("lmdeploy", asked.maker, release=release),
        own=_FACTS,
        groups=(group,),
        unmanaged=over if nodes > 1 else None,
    )
