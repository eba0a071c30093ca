"""A plan as vLLM servers: their commands, the configuration file that says the same, several nodes, pools apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from trilemma.commands.flag_words import value_text
from trilemma.engines.deployment import facts
from trilemma.engines.deployment.fleet import (
    FIRST_RANK,
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
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.write import settings, write
from trilemma.engines.writing import trusted
from trilemma.errors import InputError
from trilemma.plans import Plan, Pool
from trilemma.versions import Version, padded, parse_version

#: Options of one node or pool of a deployment: the fleet says them anew.
_FLEET = (
    "nnodes", "node-rank", "master-addr", "master-port", "headless", "distributed-executor-backend", "kv-transfer-config",
    "data-parallel-size-local", "data-parallel-start-rank", "data-parallel-address", "data-parallel-rpc-port",
    "data-parallel-rank",
)  # fmt: skip
_FACTS = facts.of_engine("vllm")


def fleet(asked: FleetAsked) -> Fleet:
    """The engines of ``asked.plan``. Every flag exists in the version. Raises `InputError` for what
    `trilemma.engines.vllm.write.write` refuses, and for layouts that the version cannot spread over nodes.
    """
    plan, release = facts.released(asked.plan, asked.version, table().versions, engine="vLLM")
    at = table().at(release)
    pools = checked_pools(plan)
    apart = len(pools) > 1
    if apart and at < padded(parse_version(_FACTS["disaggregated"]["since"])):
        raise InputError(
            f"vLLM {release} is too old for pools of prefill and decode; take {_FACTS['disaggregated']['since']} or newer"
        )
    groups, beside = [], {}
    for pool in pools:
        own = alone(plan, pool, without=_FLEET)
        groups.append(_group(asked.model, own, pool, per_node=asked.per_node, at=at, apart=apart))
        beside[f"vllm-{pool.role}.yaml" if apart else "vllm.yaml"] = _configuration(asked.model, own, groups[-1])
    return asked.fleet(
        engine="vllm",
        label=f"vLLM {release}",
        image=image(release, asked.maker),
        own=_FACTS,
        groups=tuple(groups),
        router=_router() if apart or pools[0].replicas > 1 else None,
        beside=beside,
        notes=_notes(pools, at, asked.latent) if apart else (),
        metrics=(),
    )


def image(release: str, maker: str) -> str | None:
    """The public image of a release: ``vllm/vllm-openai:v0.19.0``."""
    return facts.image("vllm", maker, release=facts.release_text(release, engine="vLLM"))


def _group(model: str, plan: Plan, pool: Pool, *, per_node: int | None, at: Version, apart: bool) -> EngineGroup:
    command = write(model=model, plan=plan)
    gpus = int(pool.layout.gpus)
    nodes = nodes_for(gpus, per_node)
    words, side = command[2:], None
    if apart:
        told = _FACTS["disaggregated"]
        connector = {"kv_connector": told["connector"], "kv_role": told["roles"][pool.role]}
        words += ["--kv-transfer-config", json.dumps(connector, separators=(",", ":"))]
        channel = told["side_channel"]
        side = Side(
            first=channel["port"],
            step=int(pool.layout.dp),
            variable=channel["variable"],
            host_variable=channel["host"],
        )
    return EngineGroup(
        role=pool.role,
        replicas=pool.replicas,
        gpus=gpus,
        program=tuple(command[:2]),
        arguments=tuple(words),
        entry="command",
        nodes=nodes,
        span=_span(pool, nodes, at) if nodes > 1 else None,
        side=side,
    )


def _span(pool: Pool, nodes: int, at: Version) -> NodeSpan:
    """Ranks of one engine over nodes, by what the version has: replicas of attention apart, else processes, else Ray."""
    known, layout = table().flags, pool.layout
    shown = ".".join(map(str, at))
    replicas, of_one = int(layout.dp), int(layout.gpus) // int(layout.dp)
    if replicas > 1:
        if replicas % nodes:
            raise InputError(
                f"vLLM is not spread over {nodes} nodes with {replicas} data-parallel ranks of {of_one} GPUs each: whole ranks"
                " must lie on a node; take another --dp or larger nodes"
            )
        if not known["headless"].exists_at(at) or not known["data-parallel-start-rank"].exists_at(at):
            raise InputError(
                f"vLLM {shown} has no --headless for data-parallel ranks on other nodes; take 0.10.0 or newer"
            )
        local = replicas // nodes
        shared = ("--data-parallel-size-local", str(local))
        meet = ("--data-parallel-address", LEADER, "--data-parallel-rpc-port", str(_FACTS["rpc_port"]))
        return NodeSpan(
            nodes=nodes,
            leader=(*shared, *meet),
            worker=(*shared, "--data-parallel-start-rank", FIRST_RANK, *meet, "--headless"),
            ranks=local,
        )
    if known["nnodes"].exists_at(at) and known["headless"].exists_at(at):
        master = ("--master-addr", LEADER)
        size = ("--nnodes", str(nodes), "--node-rank")
        return NodeSpan(nodes=nodes, leader=(*size, "0", *master), worker=(*size, RANK, *master, "--headless"))
    return NodeSpan(nodes=nodes, leader=("--distributed-executor-backend", "ray"), ray_port=_FACTS["ray_port"])


def _router() -> Router:
    told = _FACTS["router"]

    def route(ends: Sequence[Any], port: int) -> Route:
        return http_router(["vllm-router"], ends, port, apart="--vllm-pd-disaggregation")

    return Router(route=route, image=told["image"], package=told["package"])


def _notes(pools: Sequence[Pool], at: Version, latent: bool | None) -> tuple[str, ...]:
    """What the connector cannot do with every model, and images that lack it."""
    told = _FACTS["disaggregated"]
    notes = []
    prefill, decode = pools
    if latent is None and int(prefill.layout.tp) > int(decode.layout.tp):
        notes.append(
            f"tensor parallel {int(prefill.layout.tp)} for prefill and {int(decode.layout.tp)} for decode: vLLM's"
            f" {told['connector']} refuses this for models with fewer KV heads than prefill ranks (latent attention aside)"
        )
    if max(int(pool.layout.pp) for pool in pools) > 1:
        notes.append(
            f"pipeline stages: vLLM's own table of what {told['connector']} can do does not name them; try before you rely"
        )
    if at < padded(parse_version(told["images_since"])):
        notes.append(f"images of vLLM before {told['images_since']} may lack NIXL: install it into them")
    return tuple(notes)


def _configuration(model: str, plan: Plan, group: EngineGroup) -> str:
    """For ``vllm serve --config vllm.yaml``. Mappings are JSON texts and negations ``no-`` keys: all versions read these."""
    content: dict[str, Any] = {"model": model}
    for flag, value in (*settings(plan), *trusted(model, table())):
        if flag.kind in ("toggle", "switch"):
            content[flag.name if value else f"no-{flag.name}"] = True
        elif isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and flag.kind == "json"):
            content[flag.name] = value_text(value)
        else:
            content[flag.name] = list(value) if isinstance(value, tuple) else value
    if group.side is not None:
        content["kv-transfer-config"] = group.arguments[-1]
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000))
