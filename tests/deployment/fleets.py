"""Plans that export writes, and what Kubernetes and a shell make of the words of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.plans.document import plan_to_document

OPTIONS = ServeOptions(context=8192, max_seqs=64, memory_fraction=0.9)
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "tensorrt-llm": "1.2.1", "llama.cpp": "b6170"}
#: Options that a command adds to a plan's own: which node, which pool, and what sharing experts implies.
ADDED = (
    "nnodes", "node-rank", "master-addr", "distributed-executor-backend", "data-parallel-size-local",
    "data-parallel-address", "data-parallel-rpc-port", "dist-init-addr", "kv-transfer-config", "disaggregation-mode",
    "disaggregation-transfer-backend", "enable-dp-attention", "cache_transceiver_config", "disable_overlap_scheduler",
)  # fmt: skip


def served(engine: str = "vllm", replicas: int = 1, version: str | None = None, **layout: int) -> Plan:
    pool = Pool(layout=Layout(**layout), options=OPTIONS, replicas=replicas)
    return Plan(engine=EngineRef(name=engine, version=version or VERSIONS[engine]), pools=(pool,))


def apart(
    engine: str = "vllm",
    version: str | None = None,
    *,
    prefill: Mapping[str, int] = {"tp": 1},
    decode: Mapping[str, int] = {"tp": 4},
    kv_dtype: str | None = None,
) -> Plan:
    """Two prefill engines of one card and two decode engines of four, caches of the latter in ``kv_dtype``."""
    pools = (
        Pool(role="prefill", layout=Layout(**prefill), options=OPTIONS, replicas=2),
        Pool(role="decode", layout=Layout(**decode), options=replace(OPTIONS, kv_dtype=kv_dtype), replicas=2),
    )
    return Plan(engine=EngineRef(name=engine, version=version or VERSIONS[engine]), pools=pools)


def document(plan: Plan, *, model: str = "Qwen/Qwen3-32B", per_node: int = 8, **more: Any) -> dict[str, Any]:
    """An estimate as ``fit --json`` prints it, as far as export reads it."""
    return {
        "schema": "trilemma/estimate@1",
        "fits": True,
        "speed": {
            "ttft_ms": {"value": 300.0, "low": 200.0, "high": 500.0, "p50": 280.0, "p99": 900.0},
            "tpot_ms": {"value": 20.0, "low": 15.0, "high": 25.0},
        },
        "inputs": {
            "model": {"name": model},
            "cluster": {
                "accelerator": {"id": "nvidia-h200-sxm-141gb"},
                "gpus": int(plan.gpus),
                "gpus_per_node": per_node,
            },
            "workload": {"isl": 4096, "osl": 1024, "concurrency": 64},
            "plan": plan_to_document(plan),
            "engine": {"name": plan.engine.name, "version": plan.engine.version},
        },
        **more,
    }


def own_options(options: ServeOptions) -> ServeOptions:
    """Options as the plan had them, without what the fleet added."""
    return replace(options, extra={name: value for name, value in options.extra.items() if name not in ADDED})


def expanded(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Words as the kubelet hands them over: ``$(NAME)`` where the name is known, ``$$`` as one dollar."""

    def one(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        return environment.get(match.group(1), match.group())

    return [re.sub(r"\$\$|\$\(([^)]*)\)", one, word) for word in words]


def containers(documents: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(kind of object, its pod template, its container) of each workload; leaders and workers apart."""
    found = []
    for one in documents:
        spec = one.get("spec", {})
        group = spec.get("leaderWorkerTemplate", {})
        templates = [spec["template"]] if "template" in spec else [group[k] for k in group if k.endswith("Template")]
        found += [(one["kind"], template, template["spec"]["containers"][0]) for template in templates]
    return found


#: One plan of every shape that the files have.
PLANS = {
    "one": served(tp=2),
    "replicas": served("sglang", tp=2, replicas=3),
    "files": served("tensorrt-llm", dp=4, ep=4),
    "replicas of a layout": served("tensorrt-llm", tp=2, dp=2),
    "llama.cpp": served("llama.cpp", pp=2),
    "nodes": served(tp=8, pp=2),
    "attention apart": served(dp=16, ep=16, replicas=2),
    "ray": served(tp=16, version="0.10.0"),
    "vllm pools": apart(),
    "sglang pools over nodes": apart("sglang", decode={"tp": 16}),
    "tensorrt-llm pools": apart("tensorrt-llm"),
}

powers = st.sampled_from([1, 2, 4, 8])
options = st.builds(
    ServeOptions,
    context=st.none() | st.integers(1, 2**20),
    max_seqs=st.none() | st.integers(1, 4096),
    memory_fraction=st.none() | st.floats(0.05, 1.0).map(lambda value: round(value, 4)),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of one pool or of two, of engines that spread over nodes."""
    engine = draw(st.sampled_from(["vllm", "sglang"]))

    kv_dtype = draw(st.none() | st.just("fp8_e5m2"))

    def pool(role: str) -> Pool:
        tp, wide = draw(powers), draw(st.booleans())
        dp = draw(st.sampled_from([2, 4, 8, 16])) if wide else 1
        stages = 1 if role == "decode" else draw(st.sampled_from([1, 2, 4]))
        layout = Layout(tp=tp, dp=dp, ep=tp * dp) if wide else Layout(tp=tp, pp=stages)
        replicas = draw(st.integers(1, 5))
        return Pool(role=role, layout=layout, options=replace(draw(options), kv_dtype=kv_dtype), replicas=replicas)  # type: ignore[arg-type]

    roles = draw(st.sampled_from([("serve",), ("prefill", "decode")]))
    return Plan(engine=EngineRef(name=engine, version=VERSIONS[engine]), pools=tuple(pool(role) for role in roles))
