"""The engine's command is found inside every wrapping that people paste."""

from __future__ import annotations

from pathlib import Path

import pytest

from trilemma.engines import get, readable
from trilemma.engines.extract import extract
from trilemma.engines.programs import image_engine
from trilemma.errors import InputError, UnknownName

OWN = ["vllm", "serve", "org/model", "--tensor-parallel-size", "2"]


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve org/model --tensor-parallel-size 2",
        "sudo -E vllm serve org/model --tensor-parallel-size 2",
        "nohup vllm serve org/model --tensor-parallel-size 2 > serve.log 2>&1 &",
        "vllm serve org/model \\\n  --tensor-parallel-size 2 2>&1 | tee log.txt",
        "vllm serve org/model `\n  --tensor-parallel-size 2",
        "cd /srv && vllm serve org/model --tensor-parallel-size 2",
        "bash -lc 'vllm serve org/model --tensor-parallel-size 2'",
        "ssh node1 bash -c \"vllm serve 'org/model' --tensor-parallel-size 2\"",
        "uv run --with vllm vllm serve org/model --tensor-parallel-size 2",
        "srun -N1 --gpus 2 vllm serve org/model --tensor-parallel-size 2",
        "numactl --cpunodebind=0 vllm serve org/model --tensor-parallel-size 2",
        "docker exec -it box vllm serve org/model --tensor-parallel-size 2",
        "kubectl get pods; vllm serve org/model --tensor-parallel-size 2 # the server",
    ],
)
def test_wrappers_are_peeled_off(command: str) -> None:
    assert extract([command]) == ("vllm", OWN)


def test_words_as_a_shell_hands_them_over() -> None:
    words = ["nohup", *OWN, "2>&1", "|", "tee", "log"]
    assert extract(words) == ("vllm", OWN)
    assert extract(["/opt/venv/bin/vllm", *OWN[1:]])[1] == ["/opt/venv/bin/vllm", *OWN[1:]]
    assert extract(["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]) == (
        "vllm",
        ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
    )


def test_environment_stays_in_front_and_fills_variables() -> None:
    engine, words = extract(["VLLM_USE_V1=0 CUDA_VISIBLE_DEVICES=0,1 vllm serve org/model"])
    assert (engine, words[:2]) == ("vllm", ["VLLM_USE_V1=0", "CUDA_VISIBLE_DEVICES=0,1"])
    script = "export MODEL=org/model\nTP=4\nexec vllm serve $MODEL -tp ${TP} --port ${PORT:-8000} --seed $SEED"
    for words in ([script], ["bash", "-c", script]):
        assert extract(words)[1] == [
            "MODEL=org/model", "TP=4", "vllm", "serve", "org/model", "-tp", "4", "--port", "8000", "--seed", "$SEED",
        ]  # fmt: skip


def test_docker_run_as_documented_by_vllm() -> None:
    # Shape of docs/deployment/docker.md of vLLM and of public run scripts.
    command = (
        "docker run -d --runtime nvidia --gpus '\"device=0,3\"' -v ~/.cache/huggingface:/root/.cache/huggingface "
        '--env "HUGGING_FACE_HUB_TOKEN=hf_x" -p 8000:8000 --ipc=host vllm/vllm-openai:v0.19.0 '
        "--model org/model --tensor-parallel-size 2"
    )
    assert extract([command])[1] == [
        "NVIDIA_VISIBLE_DEVICES=0,3", "HUGGING_FACE_HUB_TOKEN=hf_x", "vllm/vllm-openai:v0.19.0",
        "--model", "org/model", "--tensor-parallel-size", "2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ("--gpus all --rm -it -p8000:8000", ["NVIDIA_VISIBLE_DEVICES=all"]),
        ("--gpus 2 -itd --shm-size 16g --ulimit memlock=-1", ["NVIDIA_VISIBLE_DEVICES=0,1"]),
        ("--privileged --name x -eVLLM_USE_V1=1", ["VLLM_USE_V1=1"]),
    ],
)
def test_docker_options_do_not_hide_the_image(options: str, environment: list[str]) -> None:
    words = extract([f"podman run {options} vllm/vllm-openai:latest --model m"])[1]
    assert words == [*environment, "vllm/vllm-openai:latest", "--model", "m"]


def test_entry_point_replaced() -> None:
    line = "docker run --entrypoint bash nvcr.io/nvidia/vllm:25.09-py3 -c 'vllm serve m -tp 2'"
    assert extract([line])[1] == ["nvcr.io/nvidia/vllm:25.09-py3", "vllm", "serve", "m", "-tp", "2"]


KUBERNETES = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  template:
    spec:
      containers:
      - name: metrics
        image: prom/node-exporter
        args: ["--path.rootfs=/host"]
      - name: vllm
        image: vllm/vllm-openai:v0.10.0
        command: ["/bin/sh", "-c"]
        args: ["vllm serve $(MODEL) --max-model-len 8192 --tensor-parallel-size 2"]
        env:
        - {name: MODEL, value: org/model}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
        resources: {limits: {nvidia.com/gpu: "2", cpu: "10"}}
"""

COMPOSE = """
x-shared: &shared
  restart: always
services:
  cache: {image: redis}
  llm:
    <<: *shared
    image: vllm/vllm-openai:v0.24.0
    command: >
      --model org/model
      --tensor-parallel-size 2
    environment: {VLLM_LOGGING_LEVEL: DEBUG}
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
"""


@pytest.mark.parametrize("words", [["{}"], ["kubectl", "apply", "-f", "{}"]])
def test_kubernetes_manifest(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(KUBERNETES)
    assert extract([word.format(path) for word in words])[1] == [
        "MODEL=org/model", "NVIDIA_VISIBLE_DEVICES=0,1", "vllm/vllm-openai:v0.10.0",
        "vllm", "serve", "org/model", "--max-model-len", "8192", "--tensor-parallel-size", "2",
    ]  # fmt: skip


def test_compose_file(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    assert extract(["docker", "compose", "-f", str(path), "up"])[1] == [
        "VLLM_LOGGING_LEVEL=DEBUG", "NVIDIA_VISIBLE_DEVICES=0,1", "vllm/vllm-openai:v0.24.0",
        "--model", "org/model", "--tensor-parallel-size", "2",
    ]  # fmt: skip


def test_compose_command_as_a_block_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n  a:\n    image: vllm/vllm-openai:v0.10.2\n    command: |\n      --model org/model\n"
        '      --hf_overrides \'{"a": ["no", "yes"]}\'\n'
    )
    words = extract([str(path)])[1]
    assert words == ["vllm/vllm-openai:v0.10.2", "--model", "org/model", "--hf_overrides", '{"a": ["no", "yes"]}']


LEADER = """
template: {spec: {containers: [{name: main, image: 'vllm/vllm-openai:v0.8.0', resources: {limits: {nvidia.com/gpu: 8}}}]}}
patch:
  containers:
  - name: main
    readinessProbe: {exec: {command: [curl, localhost]}}
    command: [bash, -c, "ray start --head --port=6379 &\\n python -m vllm.entrypoints.openai.api_server --model=org/model"]
"""


def test_template_and_command_apart(tmp_path: Path) -> None:
    path = tmp_path / "leader.yaml"
    path.write_text(LEADER)
    assert extract([str(path)])[1] == ["python", "-m", "vllm.entrypoints.openai.api_server", "--model=org/model"]


def test_manifest_with_two_engines_asks_which(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "services: {a: {image: 'vllm/vllm-openai:v1', command: [x]}, b: {image: vllm/vllm-openai, command: [y]}}"
    )
    with pytest.raises(InputError, match="starts 2 engines"):
        extract([str(path)])


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("sglang serve --model-path m", "sglang"),
        ("python -m sglang.launch_server --model-path m", "sglang"),
        ("docker run --gpus all lmsysorg/sglang:v0.5 python3 -m sglang.launch_server --model-path m", "sglang"),
        ("trtllm-serve m --tp_size 2", "tensorrt-llm"),
        ("./build/bin/llama-server -m m.gguf -ngl 99", "llama.cpp"),
        ("docker run ghcr.io/ggml-org/llama.cpp:server-cuda -m /m.gguf -ngl 99", "llama.cpp"),
        ("transformers serve org/model", "transformers-serve"),
    ],
)
def test_every_serving_engine_is_told(command: str, engine: str) -> None:
    assert extract([command])[0] == engine


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("torchrun --nproc-per-node 8 megatron/pretrain_gpt.py --num-layers 2", "megatron"),
        ("torchrun --nproc-per-node 8 -m torchtitan.train --module llama3", "torchtitan"),
        ("deepspeed train.py --deepspeed_config ds.json", "deepspeed"),
        ("accelerate launch train.py", "accelerate"),
        ("srun -N 2 torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 1", "transformers"),
        ("axolotl train lora.yml", "axolotl"),
        ("accelerate launch -m axolotl.cli.train lora.yml", "axolotl"),
    ],
)
def test_training_commands_keep_their_launcher(command: str, engine: str) -> None:
    found, words = extract([f"cd /somewhere && {command}"])
    assert (found, words) == (engine, command.split())


@pytest.mark.parametrize("words", [[], [""], ["ls -la"], ["vllm", "bench", "latency"], ["docker run ubuntu ls"]])
def test_no_engine_is_an_error_with_a_remedy(words: list[str]) -> None:
    with pytest.raises(InputError, match="vllm serve"):
        extract(words)


def test_images_tell_their_engine() -> None:
    assert image_engine("rocm/vllm:rocm7.0") == "vllm"
    assert image_engine("registry:5000/team/vllm-openai@sha256:abc") == "vllm"
    assert image_engine("nvcr.io/nvidia/tensorrt-llm/release:1.2") == "tensorrt-llm"
    assert image_engine("ubuntu:24.04") is None


def test_registry() -> None:
    assert readable()[:5] == ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers-serve")
    assert get("vLLM").name == "vllm"
    assert get("trtllm") is get("tensorrt-llm")
    assert get("transformers").name == "transformers-serve"
    with pytest.raises(UnknownName, match="did you mean vllm"):
        get("vlm")
