"""``trilemma export``: replicas, pools apart and several nodes, on machines, on Kubernetes and on llm-d."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleets import OPTIONS, apart, containers, document, expanded, own_options, served

from trilemma.cli.main import main
from trilemma.engines import get
from trilemma.engines.extract import extract
from trilemma.plans import EngineRef, Layout, Plan, Pool

Captured = pytest.CaptureFixture[str]


def export(folder: Path, content: Any, target: str, *options: str, code: int = 0) -> Path:
    path = folder / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    out = folder / target
    assert main(["export", str(path), "--to", target, "-o", str(out), *options]) == code
    return out


def loaded(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def spied(folder: Path, program: str, script: Path, *words: str, **variables: str) -> tuple[list[str], dict[str, str]]:
    """The words and the environment with which a script starts ``program``."""
    spy = folder / "bin" / program
    spy.parent.mkdir(exist_ok=True)
    spy.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\nprintf "%s\\n" ===\nenv\n')
    spy.chmod(0o755)
    environment = {"PATH": f"{spy.parent}:{os.environ['PATH']}", **variables}
    shown = subprocess.run(["sh", script, *words], env=environment, capture_output=True, text=True, check=True).stdout
    said, _, env = shown.partition("===\n")
    return said.splitlines(), dict(line.split("=", 1) for line in env.splitlines() if "=" in line)


# One node, replicas.


def test_kubernetes_alone_is_a_deployment_a_service_and_the_benchmark(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(tp=2, replicas=3)), "kubernetes")
    assert names(out) == {"kubernetes.yaml", "kubernetes-benchmark.yaml", "benchmark.sh", "prediction.json"}
    assert "# Planned for nvidia-h200-sxm-141gb: select its nodes" in (out / "kubernetes.yaml").read_text()
    workload, service = loaded(out / "kubernetes.yaml")
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (workload["apiVersion"], workload["kind"], workload["spec"]["replicas"]) == ("apps/v1", "Deployment", 3)
    assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert container["image"] == "vllm/vllm-openai:v0.33.0"
    assert container["command"] == ["vllm", "serve"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")] == [
        "/health"
    ] * 3
    assert pod["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}
    assert pod["enableServiceLinks"] is False
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["optional"] is True
    assert service["spec"]["selector"] == workload["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http"}]


def test_replicas_share_a_machine_and_a_router(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(tp=2, replicas=4)), "vllm")
    assert {f"serve-{n}.sh" for n in (1, 2, 3, 4)} | {"router.sh", "kubernetes.yaml"} <= names(out)
    seen = []
    for number in (1, 2, 3, 4):
        words, env = spied(tmp_path, "vllm", out / f"serve-{number}.sh", "--seed", "1")
        assert words[-4:] == ["--port", str(8000 + 100 * number), "--seed", "1"]
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        found = get("vllm").read(extract([str(out / f"serve-{number}.sh")])[1])
        assert found.plan.pool.layout == Layout(tp=2)
        assert found.facts["gpus_visible"] == 2
    assert seen == ["0,1", "2,3", "4,5", "6,7"]
    words, _ = spied(tmp_path, "vllm-router", out / "router.sh")
    assert words[:5] == ["--worker-urls", *(f"http://127.0.0.1:{port}" for port in (8100, 8200, 8300, 8400))]
    assert words[words.index("--port") + 1] == "8000"


def test_replicas_fill_one_machine_after_the_other(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(tp=4, replicas=3)), "vllm")
    words, env = spied(tmp_path, "vllm", out / "serve-3.sh")
    assert (env["CUDA_VISIBLE_DEVICES"], words[-4:]) == ("0,1,2,3", ["--host", "0.0.0.0", "--port", "8100"])
    words, _ = spied(tmp_path, "vllm-router", out / "router.sh", NODE1="10.0.0.1", NODE2="10.0.0.2")
    assert words[1:4] == ["http://10.0.0.1:8100", "http://10.0.0.1:8200", "http://10.0.0.2:8100"]
    with pytest.raises(subprocess.CalledProcessError):
        spied(tmp_path, "vllm-router", out / "router.sh", NODE1="10.0.0.1")


@pytest.mark.parametrize("engine", ["tensorrt-llm", "llama.cpp"])
def test_engines_without_a_router_say_what_goes_before_them(tmp_path: Path, capsys: Captured, engine: str) -> None:
    layout = {"tp": 2} if engine != "llama.cpp" else {"pp": 2}
    plan = served(engine, replicas=2, **layout)
    out = export(tmp_path, document(plan, model="org/Model-GGUF"), engine)
    assert "put an HTTP balancer on port" in capsys.readouterr().err
    assert "router.sh" not in names(out)
    assert loaded(out / "kubernetes.yaml")[-2]["spec"]["replicas"] == 2


def test_whole_replicas_of_tensorrt_llm_are_engines_of_their_own(tmp_path: Path) -> None:
    out = export(tmp_path, document(served("tensorrt-llm", tp=2, dp=3)), "kubernetes")
    workload = loaded(out / "kubernetes.yaml")[0]
    assert workload["spec"]["replicas"] == 3
    assert workload["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


# Several nodes.


def test_an_engine_on_two_nodes_is_a_leader_worker_set(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(tp=8, pp=2, replicas=2)), "vllm")
    workload, service = loaded(out / "kubernetes.yaml")
    group = workload["spec"]["leaderWorkerTemplate"]
    assert workload["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert (workload["spec"]["replicas"], group["size"]) == (2, 2)
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert workload["metadata"]["name"] != service["metadata"]["name"]
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    leader, worker = (group[key]["spec"]["containers"][0] for key in ("leaderTemplate", "workerTemplate"))
    lws = {"LWS_LEADER_ADDRESS": "lead.svc", "LWS_WORKER_INDEX": "1"}
    assert expanded(leader["args"], lws)[-6:] == ["--nnodes", "2", "--node-rank", "0", "--master-addr", "lead.svc"]
    ends = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "lead.svc", "--headless"]
    assert expanded(worker["args"], lws)[-7:] == ends
    assert "readinessProbe" in leader
    assert "readinessProbe" not in worker
    assert "--port" not in worker["args"]
    assert all(one["resources"]["limits"] == {"nvidia.com/gpu": "8"} for one in (leader, worker))
    found = get("vllm").read(extract([str(out / "kubernetes.yaml")])[1])
    assert found.plan.pool.layout == Layout(tp=8, pp=2)
    assert own_options(found.plan.pool.options) == OPTIONS


@pytest.mark.parametrize("rank", ["0", "1"])
def test_one_script_starts_every_node(tmp_path: Path, rank: str) -> None:
    out = export(tmp_path, document(served(tp=8, pp=2)), "vllm")
    words, _ = spied(tmp_path, "vllm", out / "serve.sh", "--seed", "1", NODE1="10.0.0.1", NODE_RANK=rank)
    found = get("vllm").read(["vllm", *words])
    extra = found.plan.pool.options.extra
    assert (extra["nnodes"], extra["node-rank"], extra["master-addr"]) == (2, int(rank), "10.0.0.1")
    assert ("--headless" in words) == (rank == "1")
    assert get("vllm").read(extract([str(out / "serve.sh")])[1]).plan.pool.layout == Layout(tp=8, pp=2)


def test_attention_replicas_lie_whole_on_nodes(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(dp=16, ep=16)), "vllm")
    words, _ = spied(tmp_path, "vllm", out / "serve.sh", NODE1="a", NODE_RANK="1")
    assert words[words.index("--data-parallel-start-rank") + 1] == "8"
    group = loaded(out / "kubernetes.yaml")[0]["spec"]["leaderWorkerTemplate"]
    worker = group["workerTemplate"]["spec"]["containers"][0]
    command = expanded([*worker["command"], *worker["args"]], {})
    spy = tmp_path / "bin" / "vllm"
    environment = {"PATH": f"{spy.parent}:{os.environ['PATH']}", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "lead"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[shown.index("--data-parallel-start-rank") + 1] == "8"
    assert shown[shown.index("--data-parallel-address") + 1] == "lead"
    assert "--headless" in shown


def test_older_vllm_spans_nodes_by_ray(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(tp=8, pp=2, version="0.10.0")), "vllm")
    group = loaded(out / "kubernetes.yaml")[0]["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[key]["spec"]["containers"][0] for key in ("leaderTemplate", "workerTemplate"))
    assert leader["args"][-2:] == ["--distributed-executor-backend", "ray"]
    assert expanded(worker["command"], {})[-1] == 'exec ray start --address="$LWS_LEADER_ADDRESS:6379" --block'
    assert get("vllm").read(extract([str(out / "kubernetes.yaml")])[1]).plan.pool.layout == Layout(tp=8, pp=2)


@pytest.mark.parametrize(
    ("plan", "target", "says"),
    [
        (served("tensorrt-llm", tp=16), "kubernetes", "start by MPI, such as srun -N 2 --ntasks-per-node 8"),
        (served("llama.cpp", pp=16), "kubernetes", "reaches cards of other nodes only over RPC"),
        (served("sglang", tp=4, dp=4), "sglang", "keeps its 4 whole replicas (--dp) on one node"),
        (served("vllm", tp=16, dp=2, ep=32), "vllm", "whole ranks must lie on a node"),
        (served("vllm", dp=16, ep=16, version="0.9.2"), "vllm", "take 0.10.0 or newer"),
        (apart("llama.cpp"), "llama.cpp", "take a plan of one pool"),
        (apart("vllm", "0.9.2"), "vllm", "too old for pools of prefill and decode"),
        (apart("sglang", "0.4.1"), "sglang", "too old for pools of prefill and decode"),
        (apart("tensorrt-llm", "0.17.0"), "tensorrt-llm", "too old for pools of prefill and decode"),
        (apart("sglang", prefill={"pp": 2}, decode={"pp": 4}), "sglang", "SGLang takes 1, or from 0.5.8 on as many"),
        (apart("sglang", "0.5.4", prefill={"pp": 2}, decode={"pp": 2}), "sglang", "SGLang takes 1, or from 0.5.8"),
        (apart(kv_dtype="fp8"), "vllm", "pools of caches in auto and fp8 cannot hand them over"),
        (served("tensorrt-llm", tp=2), "llm-d", "--to llm-d is written for vLLM and SGLang"),
        (served("vllm", tp=1, replicas=100), "vllm", "too many to start by hand"),
        (Plan(pools=(Pool(), Pool())), "vllm", "a plan of pools serve, serve is not written"),
        (Plan(pools=(Pool(role="prefill"),)), "vllm", "a plan of pools prefill is not written"),
        (Plan(pools=(Pool(role="train"),)), "vllm", "a plan of pools train is not written"),
        (Plan(engine=EngineRef(name="transformers-serve")), "kubernetes", "files are written for: vllm, sglang"),
    ],
)  # fmt: skip
def test_what_has_no_sound_way_is_refused(tmp_path: Path, capsys: Captured, plan: Plan, target: str, says: str) -> None:
    export(tmp_path, document(plan), target, code=2)
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_what_only_kubernetes_cannot_is_said_beside_the_scripts(tmp_path: Path, capsys: Captured) -> None:
    out = export(tmp_path, document(served("tensorrt-llm", tp=16)), "tensorrt-llm")
    assert "start by MPI" in capsys.readouterr().err
    assert "kubernetes.yaml" not in names(out)
    assert "trtllm-llmapi-launch" in (out / "serve.sh").read_text()
    for plan, model in ((served(tp=2), "./here"), (served("llama.cpp", pp=2), "Qwen/Qwen3-32B")):
        target = plan.engine.name
        out = export(tmp_path, document(plan, model=model), target, "--force")
        assert "is a path on this machine" in capsys.readouterr().err
        assert not {"kubernetes.yaml", "docker-run.sh"} & names(out)


# Pools apart.


def test_pools_of_vllm_find_each_other(tmp_path: Path) -> None:
    out = export(tmp_path, document(apart()), "vllm")
    words, env = spied(tmp_path, "vllm", out / "serve-prefill-2.sh", NODE1="10.0.0.1", NODE2="10.0.0.2")
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config == {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    assert (env["VLLM_NIXL_SIDE_CHANNEL_PORT"], env["VLLM_NIXL_SIDE_CHANNEL_HOST"]) == ("5601", "10.0.0.1")
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    words, env = spied(tmp_path, "vllm", out / "serve-decode-1.sh", NODE1="10.0.0.1", NODE2="10.0.0.2")
    assert json.loads(words[words.index("--kv-transfer-config") + 1])["kv_role"] == "kv_consumer"
    assert (env["VLLM_NIXL_SIDE_CHANNEL_PORT"], env["CUDA_VISIBLE_DEVICES"]) == ("5602", "2,3,4,5")
    words, _ = spied(tmp_path, "vllm-router", out / "router.sh", NODE1="a", NODE2="b")
    assert words[0] == "--vllm-pd-disaggregation"
    assert [words[at + 1] for at, word in enumerate(words) if word == "--prefill"] == ["http://a:8100", "http://a:8200"]
    assert [words[at + 1] for at, word in enumerate(words) if word == "--decode"] == ["http://a:8300", "http://b:8100"]


def test_pools_of_sglang_meet_at_the_bootstrap_port(tmp_path: Path) -> None:
    out = export(tmp_path, document(apart("sglang")), "sglang")
    text = (out / "serve-prefill-2.sh").read_text()
    assert "--disaggregation-mode prefill" in text
    assert "--disaggregation-transfer-backend nixl" in text
    assert "--disaggregation-bootstrap-port 8999" in text
    assert "bootstrap" not in (out / "serve-decode-1.sh").read_text()
    words, _ = spied(tmp_path, "python3", out / "router.sh", NODE1="a", NODE2="b")
    assert words[:3] == ["-m", "sglang_router.launch_router", "--pd-disaggregation"]
    assert [words[at + 1 : at + 3] for at, word in enumerate(words) if word == "--prefill"] == [
        ["http://a:30100", "8998"], ["http://a:30200", "8999"],
    ]  # fmt: skip


def test_pools_of_tensorrt_llm_stand_behind_its_orchestrator(tmp_path: Path) -> None:
    plan = apart("tensorrt-llm")
    out = export(tmp_path, document(plan, per_node=16), "tensorrt-llm")
    content = yaml.safe_load((out / "disaggregated.yaml").read_text())
    assert content["port"] == 8000
    assert content["context_servers"] == {"num_instances": 2, "urls": ["127.0.0.1:8100", "127.0.0.1:8200"]}
    assert content["generation_servers"] == {"num_instances": 2, "urls": ["127.0.0.1:8300", "127.0.0.1:8400"]}
    prefill = yaml.safe_load((out / "trtllm-prefill.yaml").read_text())
    assert prefill == {
        "disable_overlap_scheduler": True,
        "cache_transceiver_config": {"backend": "DEFAULT", "max_tokens_in_buffer": 8192},
    }
    assert "disable_overlap_scheduler" not in yaml.safe_load((out / "trtllm-decode.yaml").read_text())
    config, router, _ = loaded(out / "kubernetes-router.yaml")
    hosts = yaml.safe_load(config["data"]["disaggregated.yaml"])["context_servers"]["urls"]
    assert hosts[0] == "tensorrt-llm-qwen3-32b-prefill-0.tensorrt-llm-qwen3-32b-prefill:8000"
    assert router["spec"]["template"]["spec"]["containers"][0]["args"][:4] == [
        "trtllm-serve", "disaggregated", "-c", "/config/disaggregated.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_router_on_kubernetes_names_every_engine(tmp_path: Path, engine: str) -> None:
    out = export(tmp_path, document(apart(engine)), "kubernetes")
    hosts = set()
    for role in ("prefill", "decode"):
        documents = loaded(out / f"kubernetes-{role}.yaml")
        workload, service = documents[-2:]
        assert (workload["kind"], service["spec"]["clusterIP"]) == ("StatefulSet", "None")
        assert workload["spec"]["serviceName"] == service["metadata"]["name"]
        assert service["spec"]["selector"] == workload["spec"]["template"]["metadata"]["labels"]
        name = workload["metadata"]["name"]
        hosts |= {f"{name}-{number}.{name}" for number in range(workload["spec"]["replicas"])}
    text = (out / "kubernetes-router.yaml").read_text()
    assert set(re.findall(r"[a-z0-9-]+-\d\.[a-z0-9-]+(?=:\d)", text)) == hosts
    front = loaded(out / "kubernetes-router.yaml")[-1]
    assert front["spec"]["selector"]["role"] == "router"


def test_what_the_connector_may_refuse_is_said(tmp_path: Path, capsys: Captured) -> None:
    pools = (
        Pool(role="prefill", layout=Layout(tp=4), options=OPTIONS),
        Pool(role="decode", layout=Layout(tp=1), options=OPTIONS),
    )
    unknown = {"model": "org/Model-1.5_B"}
    export(tmp_path, document(Plan(engine=EngineRef(version="0.12.0"), pools=pools), **unknown), "kubernetes")
    export(tmp_path, document(apart(prefill={"pp": 2})), "kubernetes", "--force")
    said = capsys.readouterr().err
    assert "pipeline stages: vLLM's own table" in said
    assert "refuses this for models with fewer KV heads than prefill ranks" in said
    assert "images of vLLM before 0.14.0 may lack NIXL" in said
    export(tmp_path, document(apart("sglang"), **unknown), "kubernetes", "--force")
    assert "set SGLANG_DISAGG_STAGING_BUFFER=1 for both" in capsys.readouterr().err
    export(tmp_path, document(apart("sglang", decode={"tp": 1}), **unknown), "kubernetes", "--force")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("model", "decode", "staged"), [
    ("Qwen/Qwen3-32B", 4, True), ("Qwen/Qwen3-32B", 1, False), ("deepseek-ai/DeepSeek-V3", 4, False),
])  # fmt: skip
def test_heads_are_staged_between_other_ranks_of_models_that_have_them(
    tmp_path: Path, capsys: Captured, model: str, decode: int, staged: bool
) -> None:
    out = export(tmp_path, document(apart("sglang", decode={"tp": decode}), model=model), "sglang")
    assert capsys.readouterr().err == ""
    for role in ("prefill", "decode"):
        _, env = spied(tmp_path, "python3", out / f"serve-{role}-1.sh")
        assert env.get("SGLANG_DISAGG_STAGING_BUFFER") == ("1" if staged else None)
        container = containers(loaded(out / f"kubernetes-{role}.yaml"))[0][2]
        assert ({"name": "SGLANG_DISAGG_STAGING_BUFFER", "value": "1"} in container["env"]) == staged


@pytest.mark.parametrize(
    ("engine", "model", "prefill", "decode", "good"),
    [
        ("vllm", "nemotron-h-56b", 1, 4, False),
        ("vllm", "nemotron-h-56b", 4, 4, True),
        ("vllm", "gemma-3-27b", 1, 4, True),
        ("sglang", "gemma-3-27b", 1, 4, False),
        ("sglang", "gemma-3-27b", 4, 4, True),
        ("vllm", "qwen3-235b-a22b", 8, 4, False),
        ("vllm", "qwen3-235b-a22b", 4, 2, True),
        ("vllm", "deepseek-v3", 8, 4, True),
    ],
)
def test_pools_that_cannot_hand_the_model_over_are_refused(
    tmp_path: Path, capsys: Captured, engine: str, model: str, prefill: int, decode: int, good: bool
) -> None:
    plan = apart(engine, prefill={"tp": prefill}, decode={"tp": decode})
    export(tmp_path, document(plan, model=model), engine, code=0 if good else 2)
    shown = capsys.readouterr().err
    assert (f"TP{prefill} PP1 prefill and TP{decode} PP1 decode: " in shown) != good
    if not good:
        assert shown.count("\n") == 1


@pytest.mark.parametrize(("version", "told"), [("1.2.1", False), ("1.3.0rc27", True)])
def test_newer_tensorrt_llm_gets_a_short_name_of_its_node(tmp_path: Path, version: str, told: bool) -> None:
    out = export(tmp_path, document(served("tensorrt-llm", version=version, tp=2)), "kubernetes")
    ((_, _, container),) = containers(loaded(out / "kubernetes.yaml"))
    assert ({"name": "PMIX_HOSTNAME", "value": "trtllm-node"} in container["env"]) == told


# llm-d.


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_on_llm_d_are_found_by_their_labels(tmp_path: Path, engine: str) -> None:
    out = export(tmp_path, document(apart(engine)), "llm-d")
    (router,) = loaded(out / "llm-d-router-values.yaml")
    servers = router["router"]["modelServers"]
    assert servers.get("type", "vllm") == engine
    for role, port in (("prefill", 8000), ("decode", 8200)):
        (workload,) = loaded(out / f"llm-d-{role}.yaml")
        template = workload["spec"]["template"]
        found = template["metadata"]["labels"]
        assert servers["matchLabels"].items() | {("llm-d.ai/role", role)} <= found.items()
        assert workload["spec"]["selector"]["matchLabels"].items() <= found.items()
        (container,) = template["spec"]["containers"]
        assert container["ports"][0] == {"name": "http", "containerPort": port}
        assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "llm-d-hf-token"
        assert ("--enable-metrics" in container["args"]) == (engine == "sglang")
        again = get(engine).read([*container["command"], *container["args"]])
        assert again.plan.pool.layout == Layout(tp=4 if role == "decode" else 1)
        assert again.facts["server"]["port"] == port
    assert "initContainers" not in loaded(out / "llm-d-prefill.yaml")[0]["spec"]["template"]["spec"]
    (sidecar,) = template["spec"]["initContainers"]
    connector = {"vllm": "nixlv2", "sglang": "sglang"}[engine]
    assert sidecar["args"][:3] == ["--port=8000", "--model-server-port=8200", f"--kv-connector={connector}"]
    assert sidecar["restartPolicy"] == "Always"
    assert ("llm-d-values.yaml" in names(out)) == (engine == "vllm")


def test_only_the_leader_of_an_engine_over_nodes_is_found_by_llm_d(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(tp=8, pp=2, replicas=2)), "llm-d")
    assert names(out) == {"llm-d-serve.yaml", "llm-d-router-values.yaml", "benchmark.sh", "prediction.json"}
    (workload,) = loaded(out / "llm-d-serve.yaml")
    (router,) = loaded(out / "llm-d-router-values.yaml")
    template = workload["spec"]["leaderWorkerTemplate"]
    wanted = router["router"]["modelServers"]["matchLabels"].items()
    assert wanted <= template["leaderTemplate"]["metadata"]["labels"].items()
    assert not wanted & template["workerTemplate"]["metadata"]["labels"].items()
    for key in ("leaderTemplate", "workerTemplate"):
        (container,) = template[key]["spec"]["containers"]
        assert [item["valueFrom"]["secretKeyRef"]["name"] for item in container["env"]] == ["llm-d-hf-token"]
    assert get("vllm").read(extract([str(out / "llm-d-serve.yaml")])[1]).plan.pool.layout == Layout(tp=8, pp=2)


def test_values_of_llm_d_hold_the_same_commands(tmp_path: Path) -> None:
    out = export(tmp_path, document(apart()), "llm-d")
    assert names(out) == {
        "llm-d-prefill.yaml", "llm-d-decode.yaml", "llm-d-values.yaml", "llm-d-router-values.yaml", "benchmark.sh",
        "prediction.json",
    }  # fmt: skip
    (values,) = loaded(out / "llm-d-values.yaml")
    assert set(values) == {"modelArtifacts", "multinode", "accelerator", "routing", "decode", "prefill"}
    assert values["modelArtifacts"]["uri"] == "hf://Qwen/Qwen3-32B"
    assert values["routing"] == {"servicePort": 8000, "proxy": {"enabled": True, "targetPort": 8200}}
    for role, port, cards in (("decode", "8200", 4), ("prefill", "8000", 1)):
        (container,) = values[role]["containers"]
        assert (values[role]["replicas"], values[role]["parallelism"]["tensor"]) == (2, cards)
        assert (container["modelCommand"], container["command"]) == ("custom", ["vllm", "serve"])
        assert container["args"][-2:] == ["--port", port]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": str(cards)}
        found = get("vllm").read(["vllm", "serve", *container["args"]])
        assert found.plan.pool.layout == Layout(tp=cards)
    (router,) = loaded(out / "llm-d-router-values.yaml")
    assert router["router"]["modelServers"]["matchLabels"] == values["modelArtifacts"]["labels"]
    (picker,) = yaml.safe_load_all(router["router"]["epp"]["pluginsCustomConfig"]["pd-config.yaml"])
    known = {plugin["type"] for plugin in picker["plugins"]}
    assert {ref["pluginRef"] for one in picker["schedulingProfiles"] for ref in one["plugins"]} <= known


def test_one_pool_on_llm_d_has_no_sidecar_and_no_prefill(tmp_path: Path) -> None:
    out = export(tmp_path, document(served(tp=2, replicas=2)), "llm-d")
    (values,) = loaded(out / "llm-d-values.yaml")
    assert values["prefill"] == {"create": False}
    assert values["routing"]["proxy"] == {"enabled": False}
    assert values["decode"]["replicas"] == 2
    found = get("vllm").read(extract([str(out / "llm-d-values.yaml")])[1])
    assert found.plan.pool.options == OPTIONS
    assert found.facts["gpus_visible"] == 2


# The benchmark and what it is for.

_KUBECTL = """#!/bin/sh
echo "kubectl $*" >> "$LOG"
case "$1" in
  get) [ -e "$LOG.second" ] && printf 1; touch "$LOG.second" ;;
  logs) printf 'Starting\\n%s\\n{"mean_ttft_ms": 1}\\n' "$MARK" ;;
esac
"""


@pytest.mark.parametrize("mark", ["===results===", "no such line"])
def test_benchmark_runs_a_job_and_takes_its_results(tmp_path: Path, mark: str) -> None:
    out = export(tmp_path, document(served(tp=2)), "kubernetes")
    spy = tmp_path / "bin" / "kubectl"
    spy.parent.mkdir()
    spy.write_text(_KUBECTL)
    spy.chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": f"{spy.parent}:{os.environ['PATH']}", "LOG": str(log), "POLL_S": "0", "MARK": mark}
    done = subprocess.run(
        [out / "benchmark.sh", "-n", "mine"], env=environment, capture_output=True, text=True, check=False
    )
    said = log.read_text().splitlines()
    assert [line.split()[1] for line in said] == ["delete", "apply", "get", "get", "logs"]
    assert all(line.endswith("-n mine") for line in said)
    if mark == "===results===":
        assert done.returncode == 0
        assert json.loads((out / "bench.json").read_text()) == {"mean_ttft_ms": 1}
    else:
        assert done.returncode == 1
        assert "Starting" in done.stderr


def test_the_job_loads_the_service_as_predicted(tmp_path: Path) -> None:
    out = export(tmp_path, document(served("sglang", tp=2)), "kubernetes")
    (job,) = loaded(out / "kubernetes-benchmark.yaml")
    container = job["spec"]["template"]["spec"]["containers"][0]
    prediction = json.loads((out / "prediction.json").read_text())
    assert container["args"] == shlex.split(prediction["benchmark"])
    service = loaded(out / "kubernetes.yaml")[-1]["metadata"]["name"]
    assert f"--base-url http://{service}:30000 " in expanded(container["command"], {})[2]
    assert "nvidia.com/gpu" not in str(container["resources"])


def test_engines_without_a_bench_in_their_image_are_loaded_from_here(tmp_path: Path) -> None:
    out = export(tmp_path, document(served("llama.cpp", pp=2), model="org/Model-GGUF"), "kubernetes")
    assert names(out) == {"kubernetes.yaml", "benchmark.sh", "prediction.json"}
    text = (out / "benchmark.sh").read_text()
    assert "kubectl port-forward service/llama-cpp-model-gguf 8080:8080" in text
    assert "--url http://localhost:8080" in text


def test_settle_scores_pools_apart(tmp_path: Path, capsys: Captured) -> None:
    out = export(tmp_path, document(apart()), "kubernetes")
    result = {"completed": 640, "num_prompts": 640, "max_concurrency": 64, "total_input_tokens": 4096 * 640,
              "total_output_tokens": 1024 * 640, "mean_ttft_ms": 310.0, "mean_tpot_ms": 40.0}  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(result))
    capsys.readouterr()
    line = ["settle", str(tmp_path / "bench.json"), "--prediction", str(out / "prediction.json")]
    assert main([*line, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert "profile" not in answer
    assert {score["figure"]: (score["predicted"], score["inside"]) for score in answer["scores"]} == {
        "ttft_ms": (300.0, True), "tpot_ms": (20.0, False),
    }  # fmt: skip
    assert main(line) == 1
    assert "no profile" in capsys.readouterr().out
    (tmp_path / "bench.json").write_text(json.dumps({**result, "max_concurrency": 8}))
    assert main(line) == 2
    assert "run benchmark.sh beside the prediction" in capsys.readouterr().err


def test_settle_of_replicas_is_of_one_of_them(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    result = {"completed": 640, "num_prompts": 640, "max_concurrency": 64, "total_input_tokens": 4096 * 640,
              "total_output_tokens": 1024 * 640, "mean_ttft_ms": 310.0, "mean_tpot_ms": 20.0}  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(result))
    said = []
    for replicas, load in ((1, 16), (4, 64)):
        content = document(served(tp=2, replicas=replicas))
        content["inputs"]["workload"]["concurrency"] = load
        out = export(tmp_path, content, "kubernetes", "--force")
        (tmp_path / "bench.json").write_text(json.dumps({**result, "max_concurrency": load}))
        capsys.readouterr()
        words = ["settle", str(tmp_path / "bench.json"), "--prediction", str(out / "prediction.json")]
        assert main([*words, "--name", f"r{replicas}", "--json"]) in (0, 1)
        scores = json.loads(capsys.readouterr().out)["scores"]
        assert {score["concurrency"] for score in scores} == {load}
        said.append([(score["figure"], score["predicted"], score["inside"]) for score in scores])
    assert said[0] == said[1]


# check of what export wrote.


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    line = "fit Qwen/Qwen3-8B --gpu h100-sxm:2 --isl 2048 --osl 512 --concurrency 16 --engine vllm@0.33.0 --json"
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main(line.split()) == 0
        (folder / "fit.json").write_text(shown.getvalue())
        export(folder, (folder / "fit.json").read_text(), "vllm")
    return folder


@pytest.mark.parametrize("name", ["serve.sh", "docker-run.sh", "kubernetes.yaml"])
def test_check_of_an_export_is_the_estimate_again(exported: Path, capsys: Captured, name: str) -> None:
    first = json.loads((exported / "fit.json").read_text())
    assert main(["check", "--gpu", "h100-sxm:2", "--json", "--", str(exported / "vllm" / name)]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["speed"] == first["speed"]
    assert again["memory"]["total_bytes"] == first["memory"]["total_bytes"]
    said = [one["message"] for one in again["warnings"] if one["code"] == "load-of-prediction"]
    assert said == ["judged for the load of prediction.json beside it: 2048/512 tokens, 16 at once"]


def test_check_leaves_out_a_prediction_of_something_else(exported: Path, tmp_path: Path, capsys: Captured) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B --max-model-len 4096\n")
    line = ["check", "--gpu", "h100-sxm", "--json", "--", str(script)]

    def messages(text: str | None) -> list[str]:
        if text is not None:
            (tmp_path / "prediction.json").write_text(text)
        assert main(line) == 0
        answer = json.loads(capsys.readouterr().out)
        judged = "judged for the load" in str(answer["warnings"])
        assert (answer["inputs"].get("workload", {}).get("isl") == 2048) == judged
        return [one["message"] for one in answer["warnings"] if one["code"] == "load-of-prediction"]

    assert messages(None) == []
    assert "is no prediction of export" in messages("{}")[0]
    own = json.loads((exported / "vllm" / "prediction.json").read_text())
    assert "judged for the load" in messages(json.dumps(own))[0]
    own["plan"]["engine"] = {"name": "sglang"}
    assert "is of sglang and was left out" in messages(json.dumps(own))[0]
    pools = document(apart())["inputs"]["plan"]
    assert "several pools together" in messages(json.dumps({**own, "plan": pools}))[0]


def test_workers_of_a_set_are_the_leaders_engine_and_two_engines_are_still_refused(
    tmp_path: Path, capsys: Captured
) -> None:
    out = export(tmp_path, document(apart()), "kubernetes")
    both = tmp_path / "both.yaml"
    both.write_text(
        (out / "kubernetes-prefill.yaml").read_text() + "---\n" + (out / "kubernetes-decode.yaml").read_text()
    )
    capsys.readouterr()
    assert main(["check", "--gpu", "h200-sxm:8", "--", str(both)]) == 2
    assert "starts 2 engines" in capsys.readouterr().err
    assert main(["check", "--gpu", "h200-sxm:4", "--", str(out / "kubernetes-decode.yaml")]) == 0
    assert containers(loaded(both))
