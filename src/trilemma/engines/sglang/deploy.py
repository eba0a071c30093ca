"""A plan as SGLang servers: their commands, the configuration file that says the same, several nodes, pools apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from trilemma.engines.deployment import facts
from trilemma.engines.deployment.fleet import (
    LEADER,
    RANK,
    EngineGroup,
    Fleet,
    FleetAsked,
    NodeSpan,
    Route,
    Router,
    Side,
    alone,
    checked_pools,
    nodes_for,
)
from trilemma.engines.deployment.routers import http_router
from trilemma.engines.sglang.flags import table
from trilemma.engines.sglang.read import VARIABLES
from trilemma.engines.sglang.write import settings, write
from trilemma.engines.writing import trusted
from trilemma.errors import InputError
from trilemma.plans import Plan, Pool
from trilemma.versions import Version, padded, parse_version

#: Options of one node or pool of a deployment: the fleet says them anew.
_FLEET = (
    "nnodes", "node-rank", "dist-init-addr", "disaggregation-mode", "disaggregation-transfer-backend",
    "disaggregation-bootstrap-port",
)  # fmt: skip
_FACTS = facts.of_engine("sglang")


def fleet(asked: FleetAsked) -> Fleet:
    """The engines of ``asked.plan``; errors as `trilemma.engines.vllm.deploy.fleet`."""
    plan, release = facts.released(asked.plan, asked.version, table().versions, engine="SGLang")
    at = table().at(release)
    pools = checked_pools(plan)
    apart = len(pools) > 1
    if apart and not table().flags["disaggregation-mode"].exists_at(at):
        raise InputError(f"SGLang {release} is too old for pools of prefill and decode; take 0.4.6 or newer")
    if apart:
        _check_stages(*(int(pool.layout.pp) for pool in pools), at=at)
    staged = apart and _staged(pools, asked.latent)
    groups, beside = [], {}
    for pool in pools:
        own = alone(plan, pool, without=_FLEET)
        told = _roles(pool) if apart else {}
        groups.append(_group(asked.model, own, pool, per_node=asked.per_node, told=told, staged=staged))
        beside[f"sglang-{pool.role}.yaml" if apart else "sglang.yaml"] = _configuration(asked.model, own, told)
    return asked.fleet(
        engine="sglang",
        label=f"SGLang {release}",
        image=facts.image("sglang", asked.maker, release=release),
        own=_FACTS,
        groups=tuple(groups),
        router=_router() if apart or pools[0].replicas > 1 else None,
        beside=beside,
        notes=_notes(pools) if apart and asked.latent is None else (),
        metrics=("--enable-metrics",),
    )


def _check_stages(prefill: int, decode: int, *, at: Version) -> None:
    """Decode engines take caches of pipeline stages into one stage, or stage by stage."""
    since = padded(parse_version(_FACTS["disaggregated"]["decode_stages_since"]))
    if decode > 1 and (decode != prefill or at < since):
        raise InputError(
            f"decode engines of {decode} pipeline stages: SGLang takes 1, or from"
            f" {'.'.join(map(str, since))} on as many as prefill engines have ({prefill})"
        )


def _staged(pools: Sequence[Pool], latent: bool | None) -> bool:
    """Whether heads are gathered on the GPU before they go to ranks that hold others of them; a latent has no heads."""
    ranks = {int(pool.layout.tp) for pool in pools}
    return len(ranks) > 1 and latent is False


def _notes(pools: Sequence[Pool]) -> tuple[str, ...]:
    """What hands caches over between ranks that hold other heads, where the model is not known, which decides it."""
    ranks = [int(pool.layout.tp) for pool in pools]
    if ranks[0] == ranks[1]:
        return ()
    staging = _FACTS["disaggregated"]["staging"]
    return (
        f"tensor parallel {ranks[0]} for prefill and {ranks[1]} for decode: set {staging}=1 for both, as SGLang says for models"
        " without latent attention",
    )


def _roles(pool: Pool) -> dict[str, str]:
    """What makes an engine one of prefill or decode."""
    backend = _FACTS["disaggregated"]["backend"]
    return {"disaggregation-mode": pool.role, "disaggregation-transfer-backend": backend}


def _group(
    model: str, plan: Plan, pool: Pool, *, per_node: int | None, told: dict[str, str], staged: bool
) -> EngineGroup:
    command = write(model=model, plan=plan)
    head = command.index("--model-path")
    words = [*command[head:], *(word for name, value in told.items() for word in (f"--{name}", value))]
    gpus = int(pool.layout.gpus)
    nodes = nodes_for(gpus, per_node)
    extra = pool.options.extra
    port = _FACTS["disaggregated"]["bootstrap_port"]
    staging = ((_FACTS["disaggregated"]["staging"], "1"),) if staged else ()
    return EngineGroup(
        role=pool.role,
        replicas=pool.replicas,
        gpus=gpus,
        program=tuple(command[:head]),
        arguments=tuple(words),
        entry="command",
        environment=(*((name, str(extra[name])) for name in VARIABLES if name in extra), *staging),
        nodes=nodes,
        span=_span(pool, nodes, words) if nodes > 1 else None,
        side=Side(first=port, flag="--disaggregation-bootstrap-port") if pool.role == "prefill" else None,
    )


def _span(pool: Pool, nodes: int, words: Sequence[str]) -> NodeSpan:
    if int(pool.layout.dp) > 1 and "--enable-dp-attention" not in words:
        raise InputError(
            f"SGLang keeps its {int(pool.layout.dp)} whole replicas (--dp) on one node, and these take {nodes};"
            " take one replica an engine and several engines"
        )
    size = ("--nnodes", str(nodes), "--node-rank")
    meet = ("--dist-init-addr", f"{LEADER}:{_FACTS['init_port']}")
    return NodeSpan(nodes=nodes, leader=(*size, "0", *meet), worker=(*size, RANK, *meet))


def _router() -> Router:
    told = _FACTS["router"]
    program = ["python3", "-m", "sglang_router.launch_router"]

    def route(ends: Sequence[Any], port: int) -> Route:
        return http_router(program, ends, port, apart="--pd-disaggregation", sides=True)

    return Router(route=route, image=told["image"], package=told["package"])


def _configuration(model: str, plan: Plan, told: dict[str, str]) -> str:
    """For ``python3 -m sglang.launch_server --config sglang.yaml``: flags with hyphens, switches as true."""
    content: dict[str, Any] = {"model-path": model}
    for flag, value in (*settings(plan), *trusted(model, table())):
        content[flag.name] = list(value) if isinstance(value, tuple) else value
    return str(yaml.safe_dump({**content, **told}, sort_keys=False, allow_unicode=True, width=1000))
