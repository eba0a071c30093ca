"""``trilemma export``: what it writes says the same plan again, in every file."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trilemma.cli.main import main
from trilemma.engines import get
from trilemma.engines.extract import extract
from trilemma.engines.vllm.deploy import image
from trilemma.engines.vllm.flags import lookup, table
from trilemma.engines.vllm.read import read
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.plans.document import plan_to_document

PLAN = Plan(
    engine=EngineRef(version="0.24.0"),
    pools=(
        Pool(
            layout=Layout(tp=4, dp=2, ep=8),
            options=ServeOptions(
                memory_fraction=0.95,
                context=131072,
                kv_dtype="fp8",
                prefix_caching=False,
                cuda_graph_sizes=(1, 2, 4),
                multimodal_limits={"image": 0},
                extra={"hf-overrides": {"rope": 'it\'s "quoted"'}, "enable-lora": True},
            ),
            draft=Draft(method="mtp", tokens=2),
        ),
    ),
)


def estimate(plan: Plan = PLAN, **inputs: Any) -> dict[str, Any]:
    return {
        "schema": "trilemma/estimate@1",
        "fits": True,
        "inputs": {
            "model": {"name": "org/Model-1.5_B"},
            "cluster": {"accelerator": {"id": "nvidia-h200-sxm"}, "gpus": 8, "gpus_per_node": 8},
            "plan": {**plan_to_document(plan), "summary": "TP4 DP2 EP8", "context": 131072},
            "engine": {"name": "vllm", "version": "0.33.0"},
            **inputs,
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return export(tmp_path, estimate())


def export(tmp_path: Path, document: Any, *options: str) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    out = tmp_path / "out"
    assert main(["export", str(path), "--to", "vllm", "-o", str(out), *options]) == 0
    return out


@pytest.mark.parametrize("name", ["serve.sh", "docker-run.sh", "kubernetes.yaml"])
def test_every_file_reads_back_as_the_plan(folder: Path, name: str) -> None:
    engine, words = extract([str(folder / name)])
    found = get(engine).read(words)
    assert found.model == "org/Model-1.5_B"
    assert found.plan.pools == PLAN.pools
    assert (found.unknown_flags, {warning.code for warning in found.warnings}) == ((), set())
    if name != "serve.sh":
        assert found.plan.engine.version == "0.24.0"
        assert found.facts["gpus_visible"] == 8


def test_configuration_file_reads_back_as_the_plan(folder: Path) -> None:
    found = read(["vllm", "serve", "--config", str(folder / "vllm.yaml")])
    assert (found.model, found.plan.pools) == ("org/Model-1.5_B", PLAN.pools)
    content = yaml.safe_load((folder / "vllm.yaml").read_text())
    assert content["no-enable-prefix-caching"] is True
    assert json.loads(content["speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 2}


def test_script_hands_the_same_words_to_a_real_shell(folder: Path, tmp_path: Path) -> None:
    spy = tmp_path / "bin" / "vllm"
    spy.parent.mkdir()
    spy.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    spy.chmod(0o755)
    environment = {**os.environ, "PATH": f"{spy.parent}:{os.environ['PATH']}"}
    shown = subprocess.run(
        [folder / "serve.sh", "--port", "9"], env=environment, capture_output=True, text=True, check=True
    )
    words = shown.stdout.splitlines()
    assert words[-2:] == ["--port", "9"]
    assert read(["vllm", *words]).plan.pools == PLAN.pools
    assert read(["vllm", *words]).facts["server"] == {"port": 9}


def test_kubernetes_deployment_asks_for_the_gpus(folder: Path) -> None:
    manifest, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    pod = manifest["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == manifest["spec"]["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert manifest["metadata"]["name"] == "vllm-model-1-5-b"
    assert container["image"] == "vllm/vllm-openai:v0.24.0"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert pod["volumes"][0]["emptyDir"]["medium"] == "Memory"
    assert container["volumeMounts"][0]["mountPath"] == "/dev/shm"


def test_flags_exist_in_the_version(folder: Path) -> None:
    _, words = extract([str(folder / "serve.sh")])
    flags = [word for word in words if word.startswith("--")]
    assert len(flags) == 12
    for word in flags:
        given = lookup(word)
        assert given is not None
        assert given.flag.exists_at(table().at("0.24.0"))


def test_amd_cards_get_their_image_and_resource(tmp_path: Path) -> None:
    cluster = {"accelerator": {"id": "amd-mi355x"}, "gpus": 8, "gpus_per_node": 8}
    out = export(tmp_path, estimate(cluster=cluster))
    assert "vllm/vllm-openai-rocm:v0.24.0" in (out / "docker-run.sh").read_text()
    assert 'amd.com/gpu: "8"' in (out / "kubernetes.yaml").read_text()


def test_catalogue_names_become_hub_ids(tmp_path: Path) -> None:
    out = export(tmp_path, estimate(model={"name": "qwen3-32b"}))
    assert "vllm serve Qwen/Qwen3-32B " in (out / "serve.sh").read_text()


def test_several_nodes_get_no_single_container(tmp_path: Path) -> None:
    cluster = {"accelerator": {"id": "nvidia-h200-sxm"}, "gpus": 8, "gpus_per_node": 4}
    out = export(tmp_path, estimate(cluster=cluster))
    assert sorted(path.name for path in out.iterdir()) == ["kubernetes.yaml", "serve.sh", "vllm.yaml"]
    manifest = next(yaml.safe_load_all((out / "kubernetes.yaml").read_text()))
    assert (manifest["kind"], manifest["spec"]["leaderWorkerTemplate"]["size"]) == ("LeaderWorkerSet", 2)


def test_version_of_the_facts_is_taken_where_the_plan_names_none(tmp_path: Path) -> None:
    plan = Plan(pools=(Pool(layout=Layout(tp=8)),))
    out = export(tmp_path, estimate(plan))
    assert "vllm-openai:v0.33.0" in (out / "docker-run.sh").read_text()
    assert image("0.8.5.post1", "nvidia") == "vllm/vllm-openai:v0.8.5.post1"
    assert image("0.19", "nvidia") == "vllm/vllm-openai:v0.19.0"


def test_nth_plan_of_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = estimate(Plan(pools=(Pool(layout=Layout(tp=2)),)))
    other |= {"fits": False, "reason": "no room for the cache"}
    document = {"schema": "trilemma/plans@1", "plans": [estimate(), other]}
    out = export(tmp_path, document, "--plan", "2")
    shown = capsys.readouterr()
    assert "--tensor-parallel-size 2" in (out / "serve.sh").read_text()
    assert str(out / "serve.sh") in shown.out.splitlines()
    assert "no room for the cache" in shown.err
    assert main(["export", str(tmp_path / "plan.json"), "--to", "vllm", "-o", str(out), "--plan", "3"]) == 2


def test_files_that_differ_are_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = export(tmp_path, estimate())
    export(tmp_path, estimate())
    (out / "serve.sh").write_text("mine")
    arguments = ["export", str(tmp_path / "plan.json"), "--to", "vllm", "-o", str(out)]
    assert main(arguments) == 2
    assert "holds other serve.sh; give --force" in capsys.readouterr().err
    assert (out / "serve.sh").read_text() == "mine"
    assert main([*arguments, "--force"]) == 0
    assert (out / "serve.sh").read_text() != "mine"


def broken(*path: str, value: Any) -> dict[str, Any]:
    document = estimate()
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("", "not a JSON document"),
        ("{" * 100_000, "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        ('{"a": NaN}', "not a JSON document"),
        ("[]", "neither trilemma/estimate@1"),
        (broken("schema", value="other"), "neither trilemma/estimate@1"),
        (broken("schema", value=["x"]), "neither trilemma/estimate@1"),
        (broken("schema", value="trilemma/plans@1"), "holds no plans"),
        ({"schema": "trilemma/plans@1", "plans": [5]}, "not an estimate"),
        (broken("inputs", value=3), "inputs is not an object"),
        (broken("inputs", "model", "name", value=None), "inputs.model.name"),
        (broken("inputs", "model", "name", value="--evil"), "model name"),
        (broken("inputs", "model", "name", value="a\nb"), "model name"),
        (broken("inputs", "plan", "engine", value={"name": "vllm", "version": "0.24.0\nrm -rf /"}), "not a version"),
        (broken("inputs", "plan", "engine", value={"name": "transformers-serve"}), None),
        (broken("inputs", "plan", value={}), "lacks engine, pools"),
        (broken("inputs", "plan", "engine", value={"name": "nope"}), "unknown engine"),
        (broken("inputs", "engine", value=[]), "inputs.engine"),
        (broken("inputs", "engine", "version", value="../../x"), None),
        (broken("inputs", "plan", "engine", value={"name": "vllm", "version": "latest"}), "not a version"),
    ],
)
def test_bad_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str], document: Any, says: str | None) -> None:
    path = tmp_path / "plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    code = main(["export", str(path), "--to", "vllm", "-o", str(tmp_path / "out")])
    shown = capsys.readouterr().err
    if says is None:
        # The plan names its version; the one beside it is not used. Plans of other engines are translated.
        assert code == 0
        return
    assert code == 2
    assert says in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_other_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(estimate()))
    assert main(["export", str(path), "--to", "vlm", "-o", str(tmp_path)]) == 2
    assert "did you mean vllm" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "absent.json"), "--to", "vllm", "-o", str(tmp_path)]) == 2
    assert main(["export", str(path), "--to", "vllm", "-o", str(path)]) == 2
    assert "cannot be written" in capsys.readouterr().err
