"""A plan as TensorRT-LLM servers: their commands, the YAML of their options, pools apart behind its own orchestrator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from trilemma.engines.deployment import facts
from trilemma.engines.deployment.fleet import (
    End,
    EngineGroup,
    Fleet,
    FleetAsked,
    Route,
    Router,
    alone,
    checked_pools,
    nodes_for,
)
from trilemma.engines.tensorrt_llm.flags import table
from trilemma.engines.tensorrt_llm.write import YAML, write, yaml_options
from trilemma.errors import InputError
from trilemma.plans import Plan, Pool
from trilemma.versions import padded, parse_version

_FACTS = facts.of_engine("tensorrt-llm")
#: File of the orchestrator between pools.
ORCHESTRATOR = "disaggregated.yaml"


def fleet(asked: FleetAsked) -> Fleet:
    """The engines of ``asked.plan``; errors as `trilemma.engines.vllm.deploy.fleet`. Images for NVIDIA cards only.

    Whole replicas (``--dp`` without experts in common) are engines of their own.
    """
    plan, release = facts.released(asked.plan, asked.version, table().versions, engine="TensorRT-LLM")
    pools = checked_pools(plan)
    apart = len(pools) > 1
    since = _FACTS["disaggregated"]["since"]
    if apart and padded(parse_version(release, engine="TensorRT-LLM")) < padded(parse_version(since)):
        raise InputError(
            f"TensorRT-LLM {release} is too old for pools of prefill and decode as written here; take {since} or newer"
        )
    groups = tuple(_group(asked.model, plan, pool, per_node=asked.per_node, apart=apart) for pool in pools)
    several = max(groups, key=lambda group: group.nodes)
    image = facts.image("tensorrt-llm", asked.maker, release=release)
    router = Router(route=_orchestrated, image=image, entry="args", by_file=True)
    return asked.fleet(
        engine="tensorrt-llm",
        label=f"TensorRT-LLM {release}",
        image=image,
        own=_FACTS,
        groups=groups,
        router=router if apart else None,
        unmanaged=None if several.nodes == 1 else _over_nodes(several),
    )


def _over_nodes(group: EngineGroup) -> str:
    """How ranks on other nodes are started; there is no way to on Kubernetes without an MPI launcher of one's own."""
    return (
        f"{group.gpus} GPUs on {group.nodes} nodes start by MPI, such as srun -N {group.nodes} --ntasks-per-node"
        f" {group.gpus_per_node} --mpi=pmix trtllm-llmapi-launch before this command"
    )


def _group(model: str, plan: Plan, pool: Pool, *, per_node: int | None, apart: bool) -> EngineGroup:
    own = alone(plan, pool)
    copies = 1 if _shares_experts(pool) else int(pool.layout.dp)
    if copies > 1:
        own = replace(own, pools=(replace(own.pool, layout=replace(pool.layout, dp=1)),))
    command = write(model=model, plan=own)
    options = yaml_options(own)
    if apart:
        options = {**options, **_transfer(pool)}
    name = f"trtllm-{pool.role}.yaml" if apart else YAML
    words = [word for word in command if word not in ("--extra_llm_api_options", YAML)]
    if options:
        words += ["--extra_llm_api_options", name]
    gpus = int(pool.layout.gpus) // copies
    nodes = nodes_for(gpus, per_node)
    return EngineGroup(
        role=pool.role,
        replicas=pool.replicas * copies,
        gpus=gpus,
        program=tuple(words[:1]),
        arguments=tuple(words[1:]),
        entry="args",
        files={name: _yaml(options)} if options else {},
        environment=_short_name(own) if nodes == 1 else (),
        nodes=nodes,
    )


def _short_name(plan: Plan) -> tuple[tuple[str, str], ...]:
    """A name of the node that the MPI of newer images accepts: it refuses the long names that pods have."""
    named = _FACTS["node_name"]
    release = padded(parse_version(str(plan.engine.version), engine="TensorRT-LLM"))
    return ((named["variable"], named["value"]),) if release >= padded(parse_version(named["since"])) else ()


def _shares_experts(pool: Pool) -> bool:
    return int(pool.layout.ep) > 1 or bool(pool.options.extra.get("enable_attention_dp"))


def _transfer(pool: Pool) -> dict[str, Any]:
    """How a pool hands its cache over. Prefill engines do not overlap scheduling; the buffer holds the longest prompt."""
    transceiver: dict[str, Any] = {"backend": _FACTS["disaggregated"]["backend"]}
    if pool.options.context is not None:
        transceiver["max_tokens_in_buffer"] = pool.options.context
    settings: dict[str, Any] = {"disable_overlap_scheduler": True} if pool.role == "prefill" else {}
    return settings | {"cache_transceiver_config": transceiver}


def _orchestrated(ends: Sequence[End], port: int) -> Route:
    """``trtllm-serve disaggregated``: the engines' addresses stand in its file."""
    servers = {
        key: [f"{end.host}:{end.port}" for end in ends if end.role == role]
        for key, role in (("context_servers", "prefill"), ("generation_servers", "decode"))
    }
    content = {
        "hostname": "0.0.0.0",
        "port": port,
        "backend": "pytorch",
        **{key: {"num_instances": len(urls), "urls": urls} for key, urls in servers.items()},
    }
    waits = facts.facts()["router"]
    words = ["trtllm-serve", "disaggregated", "-c", ORCHESTRATOR]
    words += ["-t", str(waits["startup_s"]), "-r", str(waits["request_s"])]
    return Route(words=tuple(words), files={ORCHESTRATOR: _yaml(content)})


def _yaml(content: dict[str, Any]) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000))
