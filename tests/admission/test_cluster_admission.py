"""What a cluster is told about objects that would start engines: allowed, denied and why, or not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from review_documents import UID, body, container, deployment, inference_service, leader_workers, review

from trilemma.admission.judging import Policy
from trilemma.admission.review import MOST_BYTES, answer_document, read_review
from trilemma.admission.server import reviewed
from trilemma.cli.main import main
from trilemma.commands.pod_labels import cards_named
from trilemma.errors import InputError

SMALL = ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192"]
LARGE = ["--model", "meta-llama/Llama-3.1-70B-Instruct"]


@pytest.fixture(autouse=True)
def own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of the catalogue alone."""
    monkeypatch.delenv("TRILEMMA_MODELS", raising=False)


def test_what_fits_is_let_in_without_a_word() -> None:
    assert reviewed(body(deployment(SMALL)), Policy()) == reviewed(body(deployment(SMALL)), Policy(unknown="deny"))
    decision = reviewed(body(deployment(SMALL)), Policy())
    assert decision.allowed
    assert not decision.warnings
    assert answer_document(UID, decision) == {
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": UID, "allowed": True},
    }  # fmt: skip


def test_what_cannot_start_is_denied_with_reason_and_remedy() -> None:
    """70 billion parameters of 16 bits are 131 GiB; the card holds 79."""
    decision = reviewed(body(deployment(LARGE)), Policy())
    assert not decision.allowed
    assert decision.message.startswith("container engine: does not start on NVIDIA-H100-80GB-HBM3 (")
    assert "loading needs 131." in decision.message
    assert "would start: vllm serve" in decision.message
    answer = answer_document(UID, decision)["response"]
    assert answer["status"]["code"] == 403
    assert answer["status"]["message"] == decision.message


def test_the_same_on_two_cards_of_a_pod_is_let_in() -> None:
    assert reviewed(body(deployment([*LARGE, "--tensor-parallel-size", "4"], gpus=4)), Policy()).allowed


def test_pods_of_several_nodes_are_one_engine() -> None:
    """DeepSeek-R1 in FP8 is 642 GiB: not on 8 cards of 80 GB, but on 16."""
    words = ["--model", "deepseek-ai/DeepSeek-R1", "--tensor-parallel-size", "8", "--max-model-len", "8192"]
    apart = [*words, "--pipeline-parallel-size", "2"]
    product = "NVIDIA-H100-80GB-HBM3"
    assert reviewed(body(leader_workers(apart, gpus=8, product=product, size=2)), Policy()).allowed
    assert not reviewed(body(leader_workers(words, gpus=8, product=product, size=1)), Policy()).allowed


@pytest.mark.parametrize(
    ("arguments", "storage"),
    [
        (["--model_name=llama3", "--model_id=meta-llama/Meta-Llama-3-8B-Instruct"], None),
        (["--model_name", "llama3", "--model_id", "meta-llama/Meta-Llama-3-8B-Instruct", "--backend=vllm"], None),
        (["--model_name=llama3", "--model_dir=/mnt/models"], "hf://meta-llama/Meta-Llama-3-8B-Instruct:abc123"),
    ],
)
def test_an_inference_service_is_the_engine_behind_it(arguments: list[str], storage: str | None) -> None:
    """15 GiB of weights: a T4 of 14.6 GiB refuses them, an L4 of 22.0 takes them."""
    denied = reviewed(body(inference_service(arguments, gpus=1, product="Tesla-T4", storage=storage)), Policy())
    assert not denied.allowed
    assert "loading needs 15." in denied.message
    assert reviewed(body(inference_service(arguments, gpus=1, product="NVIDIA-L4", storage=storage)), Policy()).allowed


def test_another_runtime_is_no_engine() -> None:
    service = inference_service(
        ["--model_id=meta-llama/Llama-3.1-70B-Instruct", "--backend=huggingface"], gpus=1, product="Tesla-T4"
    )
    assert reviewed(body(service), Policy(unknown="deny")).allowed


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (deployment(["--model", "acme/secret-13b"]), "model not known"),
        (deployment(SMALL, product="Unobtainium-X"), "unknown accelerator"),
        (deployment(["--model", "/etc/passwd"]), "cannot be read: no file of this machine is read for others"),
    ],
)
def test_what_is_not_known_goes_by_the_policy(manifest: dict[str, Any], said: str) -> None:
    open_, closed = reviewed(body(manifest), Policy()), reviewed(body(manifest), Policy(unknown="deny"))
    assert open_.allowed
    assert said in open_.warnings[0]
    assert not closed.allowed
    assert said in closed.message


def test_pods_without_a_label_take_the_card_of_the_policy() -> None:
    manifest = deployment(LARGE, product=None)
    unlabelled = reviewed(body(manifest), Policy())
    assert unlabelled.allowed
    assert "no label says on which cards" in unlabelled.warnings[0]
    assert not reviewed(body(manifest), Policy(gpu="h100-sxm")).allowed


def test_any_card_that_an_affinity_takes_will_do() -> None:
    manifest = deployment(SMALL, product=None)
    term = {"key": "cloud.google.com/gke-accelerator", "operator": "In", "values": ["nvidia-tesla-t4", "nvidia-l4"]}
    manifest["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        }
    }
    assert cards_named(manifest) == ("nvidia-tesla-t4", "nvidia-l4")
    assert reviewed(body(manifest), Policy()).allowed
    term["values"] = ["nvidia-tesla-t4"]
    assert not reviewed(body(manifest), Policy()).allowed


def test_a_no_below_the_policy_is_a_warning() -> None:
    """A pool a gigabyte short of one request is refused with some nine chances of ten."""
    words = ["--model", "Qwen/Qwen2.5-32B-Instruct", "--max-model-len", "20000", "--gpu-memory-utilization", "0.85"]
    tight = body(deployment(words, image="vllm/vllm-openai:v0.33.0"))
    assert not reviewed(tight, Policy(deny_from=0.8)).allowed
    doubtful = reviewed(tight, Policy(deny_from=0.999))
    assert doubtful.allowed
    assert doubtful.warnings[0].startswith("container engine: may not start on NVIDIA-H100-80GB-HBM3 (")
    with pytest.raises(InputError, match="deny_from"):
        Policy(deny_from=0.2)


@pytest.mark.parametrize(
    "manifest",
    [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x"},
            "spec": {"containers": [container(["sleep"], gpus=0, image="busybox")]},
        },
    ],
)
def test_what_runs_no_engine_is_let_in(manifest: dict[str, Any]) -> None:
    decision = reviewed(body(manifest), Policy(unknown="deny"))
    assert decision.allowed
    assert not decision.warnings


def test_what_goes_away_is_let_go() -> None:
    assert reviewed(body(deployment(LARGE), operation="DELETE"), Policy()).allowed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe{", "no JSON"),
        (b"[]", "no AdmissionReview"),
        (
            b'{"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "a"}}',
            "no AdmissionReview of admission.k8s.io/v1",
        ),
        (b'{"apiVersion": "admission.k8s.io/v1", "request": {"uid": ""}}', "no uid"),
        (b'{"apiVersion": "admission.k8s.io/v1", "request": {"uid": 7}}', "no uid"),
        (b"[" * 100_000, "nested deeper than 200"),
        (b" " * (MOST_BYTES + 1), "longer than"),
    ],
)
def test_what_is_no_review_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_review(text)


def test_long_warnings_are_cut_as_the_api_server_would() -> None:
    decision = reviewed(body(deployment(["--model", f"acme/{'x' * 400}"])), Policy())
    told = answer_document(UID, decision)["response"]["warnings"]
    assert max(map(len, told)) <= 256


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["spec", "containers", "image", "args", "command", "modelFormat", "name", "resources", "limits", "key", "values", "env"]
    ) | st.text(max_size=8), inner, max_size=5),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=150)
@given(manifest=st.dictionaries(st.sampled_from(["spec", "kind", "metadata"]), JSON, max_size=3))
def test_no_object_brings_the_judge_down(manifest: dict[str, Any]) -> None:
    frame = review({})
    frame["request"]["object"] = manifest
    decision = reviewed(json.dumps(frame).encode(), Policy(gpu="h100-sxm"))
    assert "bug of trilemma" not in " ".join(decision.warnings)


def test_one_review_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "review.json"
    file.write_bytes(body(deployment(LARGE)))
    assert main(["admission", "--review", str(file)]) == 1
    assert json.loads(capsys.readouterr().out)["response"]["allowed"] is False
    assert main(["admission", "--review", str(tmp_path / "none.json")]) == 2
    assert main(["admission"]) == 2
    assert "--cert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--gpu", "nosuchcard"], "nosuchcard"), (["--models", "nosuchfolder"], "nosuchfolder is no folder")],
)
def test_a_policy_that_judges_nothing_does_not_start(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else every object would be let in unjudged, with a warning that nobody reads."""
    file = tmp_path / "review.json"
    file.write_bytes(body(deployment(SMALL)))
    assert main(["admission", "--review", str(file), *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1
