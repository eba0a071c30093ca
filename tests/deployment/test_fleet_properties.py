"""What holds of every exported fleet: the engines' words, their number and cards, names, quoting."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleets import apart, containers, document, expanded, own_options, plans, served
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from trilemma.cli.main import main
from trilemma.commands.bounded_yaml import load_all
from trilemma.engines import deployer, get
from trilemma.engines.deployment import facts, kubernetes, llm_d, llm_d_chart, scripts
from trilemma.engines.deployment.fleet import nodes_for
from trilemma.engines.deployment.yaml_text import yaml_text
from trilemma.engines.extract import extract
from trilemma.engines.traits import those
from trilemma.errors import InputError
from trilemma.plans import Plan

MODEL = "Qwen/Qwen3-32B"
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
TOKEN = {"HF_TOKEN": "hf_secret", "LWS_LEADER_ADDRESS": "lead", "LWS_WORKER_INDEX": "1"}


def fleet_of(plan: Plan, *, model: str = MODEL, per_node: int | None = 8) -> Any:
    return deployer(plan.engine.name)(model=model, plan=plan, version=None, maker="nvidia", per_node=per_node)


def laid(plan: Plan, **more: Any) -> Any:
    """The fleet; None where it is refused, in one line."""
    try:
        return fleet_of(plan, **more)
    except InputError as error:
        if "\n" in str(error):
            raise
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleets")


def read_back(path: Path, text: str) -> Any:
    path.write_text(text, encoding="utf-8")
    engine, words = extract([str(path)])
    return get(engine).read(words)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(), per_node=st.sampled_from([None, 4, 8]))
def test_manifests_say_the_plan_again(folder: Path, plan: Plan, per_node: int | None) -> None:
    fleet = laid(plan, per_node=per_node)
    # Layouts that the engine cannot lay over nodes are refused, and only those.
    wide = [pool for pool in plan.pools if per_node is not None and int(pool.layout.gpus) > per_node]
    assert fleet is not None or any(int(pool.layout.dp) > 1 for pool in wide)
    assume(fleet is not None)
    found = kubernetes.manifests(fleet)
    on_llm_d = llm_d.files(fleet) if fleet.metrics is not None else {}
    cards = 0
    for pool in plan.pools:
        text = found["kubernetes.yaml" if len(plan.pools) == 1 else f"kubernetes-{pool.role}.yaml"]
        for said in filter(None, (text, on_llm_d.get(f"llm-d-{pool.role}.yaml"))):
            again = read_back(folder / "k.yaml", said)
            assert again.model == MODEL
            assert again.plan.engine == plan.engine
            assert again.plan.pool.layout == pool.layout
            assert own_options(again.plan.pool.options) == pool.options
            assert again.unknown_flags == ()
        for one in load_all(text, name="k"):
            spec = one["spec"]
            size = spec.get("leaderWorkerTemplate", {}).get("size", 1)
            for _, _, container in containers([one])[:1]:
                cards += spec["replicas"] * size * int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert cards == plan.gpus


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans())
def test_scripts_say_the_plan_again_on_cards_of_their_own(folder: Path, plan: Plan) -> None:
    fleet = fleet_of(plan, per_node=64)
    taken: set[tuple[int, int]] = set()
    ports: set[tuple[int, int]] = set()
    files = scripts.host_files(fleet)
    for place in scripts.placed(fleet):
        assert (place.node, place.port) not in ports
        ports.add((place.node, place.port))
        if place.group.nodes == 1:
            cards = {(place.node, place.first_gpu + card) for card in range(place.group.gpus)}
            assert not cards & taken
            assert max(card for _, card in cards) < 64
            taken |= cards
        pool = next(pool for pool in plan.pools if pool.role == place.group.role)
        name = place.script if place.script in files else "serve.sh"
        again = read_back(folder / "s.sh", files[name])
        assert again.plan.pool.layout == pool.layout
        assert own_options(again.plan.pool.options) == pool.options


@settings(max_examples=60)
@given(
    model=st.text(min_size=1, max_size=60)
    | st.text(st.sampled_from("$(){}`\"'\\ :#&*!|>%@,-[]?.~/=\u2028\x85é日"), min_size=1),
    engine=st.sampled_from(["vllm", "sglang", "tensorrt-llm", "llama.cpp"]),
    disaggregated=st.booleans(),
)
def test_hostile_names_stay_one_word(model: str, engine: str, disaggregated: bool) -> None:
    plan = apart(engine) if disaggregated and engine != "llama.cpp" else served(engine, tp=1)
    fleet = laid(plan, model=model)
    assume(fleet is not None)
    files = {**scripts.host_files(fleet)}
    if not fleet.on_this_machine:
        files |= kubernetes.manifests(fleet)
        if fleet.metrics is not None:
            files |= llm_d.files(fleet) | llm_d_chart.values(fleet)
    for name, text in files.items():
        if name.startswith("serve"):
            line = text.partition("exec ")[2].replace("\\\n", " ")
            assert fleet.weights in shlex.split(line)
        if not name.startswith(("kubernetes", "llm-d")):
            continue
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
        if not name.endswith("values.yaml"):
            assert {one["kind"] for one in documents} <= {"ConfigMap", "Deployment", "StatefulSet", "Service"}
            assert all(LABEL.fullmatch(one["metadata"]["name"]) for one in documents)
            for _, _, container in containers(documents):
                words = expanded([*container.get("command", []), *container.get("args", [])], TOKEN)
                assert fleet.weights in words or container["name"] in ("router", "routing-proxy")
                assert "hf_secret" not in str(words)


@given(words=st.lists(st.text(st.sampled_from("$()HF_TOKEN-9.e:x '\"\\"), max_size=20), max_size=6))
def test_words_pass_through_kubernetes_as_they_are(words: list[str]) -> None:
    from trilemma.engines.deployment.pods import escaped

    (document,) = yaml.safe_load_all(yaml_text([{"args": escaped(words)}]))
    assert expanded(document["args"], TOKEN) == words


@given(
    value=st.text(max_size=40)
    | st.sampled_from(["1e-05", "0o17", "12:30", "y", "off", "1_000", "0x1F", "~", "null", ".5"])
)
def test_text_is_text_in_every_dialect(value: str) -> None:
    text = yaml_text([{"value": value}])
    assert next(yaml.safe_load_all(text)) == {"value": value}
    shown = text.removeprefix("value: ").rstrip("\n")
    # What stands without quotes begins as no number, sign or indicator of any dialect does.
    assert shown[:1] in ("'", '"', "|", "/", "-", "") or shown[:1].isalpha()
    assert not shown.startswith("-") or shown.startswith("--")
    assert shown.lower() not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


@given(gpus=st.integers(1, 512), per_node=st.integers(1, 16))
def test_nodes_hold_an_engine_in_equal_parts(gpus: int, per_node: int) -> None:
    nodes = nodes_for(gpus, per_node)
    assert gpus % nodes == 0
    assert gpus // nodes <= per_node
    assert nodes == 1 or all(gpus % fewer or gpus // fewer > per_node for fewer in range(1, nodes))


def changed(*path: str, value: Any) -> dict[str, Any]:
    content = document(served(tp=2))
    node = content
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (changed("speed", "tpot_ms", "value", value=math.inf), "speed.tpot_ms.value"),
        (changed("speed", "tpot_ms", "value", value=-1), "speed.tpot_ms.value"),
        (changed("speed", "tpot_ms", "low", value=0), "speed.tpot_ms.low"),
        (changed("speed", "tpot_ms", "high", value=1e300), "speed.tpot_ms.high"),
        (changed("speed", "ttft_ms", "p99", value="fast"), "speed.ttft_ms.p99"),
        (changed("speed", "ttft_ms", "low", value=9000.0), "low 9000 is above high 500"),
        (changed("speed", "ttft_ms", value=[1]), "speed.ttft_ms has no value"),
        (changed("speed", "ttft_ms", "high", value=None), "speed.ttft_ms has no value"),
        (changed("inputs", "workload", "isl", value=True), "workload isl"),
        (changed("inputs", "workload", "osl", value=2**60), "workload osl"),
        (changed("inputs", "workload", "concurrency", value="64; rm -rf /"), "workload concurrency"),
        (changed("inputs", "cluster", "gpus_per_node", value=-8), "gpus_per_node"),
        (changed("inputs", "cluster", "accelerator", value={}), "inputs.cluster.accelerator.id"),
    ],
)
def test_figures_that_cannot_be_go_into_no_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: dict[str, Any], names: str
) -> None:
    path = tmp_path / "plan.json"
    # An infinity that JSON can spell: a number too large for a double.
    path.write_text(json.dumps(content).replace("Infinity", "1e999"))
    assert main(["export", str(path), "--to", "kubernetes", "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert names in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_prediction_holds_nothing_else_of_its_document(tmp_path: Path) -> None:
    content = document(served(tp=2))
    content["inputs"]["cluster"]["note"] = "x" * 100
    content["speed"]["tpot_ms"]["comment"] = {"deep": [1]}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    assert main(["export", str(tmp_path / "plan.json"), "--to", "kubernetes", "-o", str(tmp_path / "out")]) == 0
    prediction = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert prediction["cluster"] == {"accelerator": {"id": "nvidia-h200-sxm-141gb"}, "gpus": 2, "gpus_per_node": 8}
    assert set(prediction["predicted"]["tpot_ms"]) == {"value", "low", "high"}


@pytest.mark.parametrize(
    "version", ["0.24.0\nrm -rf /", "0.24.0; x", "0.24.0$(x)", "0.24.0 # y", "v", "", "0.24.0" * 40]
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_versions_that_are_none_reach_no_file(engine: str, version: str) -> None:
    with pytest.raises(InputError):
        fleet_of(served(engine, tp=1, version=version or " "))


def test_every_fact_has_its_source() -> None:
    table = facts.facts()
    assert table["as_of"]
    for engine in map(facts.of_engine, those("deploys")):
        assert engine["source"]
        assert all(":" in pattern for pattern in engine["images"].values())
        assert all(part["source"] for part in (engine.get("disaggregated"), engine.get("router")) if part)
    assert table["kubernetes"]["source"]
    assert all(table["llm_d"][f"{part}_source"] for part in ("servers", "chart", "router"))
    assert facts.of_engine("tensorrt-llm")["node_name_source"]
