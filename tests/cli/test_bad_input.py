"""Values that cannot be: one line on stderr that names the value and the remedy, exit code 2."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main

SMALL: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 2048,
    },
    "mixtral": {
        "model_type": "mixtral", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 512, "n_layer": 2, "n_head": 8, "vocab_size": 1000, "n_positions": 1024},
}  # fmt: skip


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main(words)
    caught = capsys.readouterr()
    assert code == 2, caught.out
    assert caught.out == ""
    assert caught.err.count("\n") == 1
    return caught.err


@pytest.mark.parametrize(
    ("base", "change", "said"),
    [
        ("mixtral", {"num_experts_per_tok": 9}, "9 experts per token of 8"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0"),
        ("gpt2", {"n_embd": 0}, "n_embd is 0"),
        ("gpt2", {"n_embd": 0, "hidden_size": 512}, "hidden_size is 512 and n_embd is 0"),
        ("gpt2", {"n_head": 4, "num_attention_heads": 8}, "num_attention_heads is 8 and n_head is 4"),
        ("gpt2", {"n_layer": 3, "num_hidden_layers": 2}, "num_hidden_layers is 2 and n_layer is 3"),
        ("llama", {"hidden_size": -512}, "hidden_size is -512"),
        ("llama", {"hidden_size": 2**40}, "hidden_size is 1099511627776"),
        ("llama", {"num_attention_heads": 7, "num_key_value_heads": 7}, "no multiple of the 7 attention heads"),
        ("llama", {"vocab_size": 0}, "vocab_size is 0"),
        ("llama", {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
        ("llama", {"intermediate_size": 1.5}, "intermediate_size is 1.5"),
    ],
)
def test_configurations_that_cannot_be(
    base: str, change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL[base] | change))
    assert said in refused(["models", str(path)], capsys)


VLLM = "vllm serve meta-llama/Llama-3.1-8B"
SGLANG = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B"
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512"
    " --micro-batch-size 1 --global-batch-size 8 --bf16 --swiglu --vocab-size 1000"
)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{VLLM} --num-redundant-experts -3", "--num-redundant-experts -3"),
        (f"{VLLM} --eplb-config '{{\"num_redundant_experts\": -4}}'", "num_redundant_experts -4"),
        (f"{VLLM} --eplb-config '{{\"window_size\": 0}}'", "window_size 0"),
        (f"{VLLM} --eplb-config nothing", "--eplb-config 'nothing'"),
        (f"{VLLM} --eplb-window-size 0", "--eplb-window-size 0"),
        (f"{VLLM} --hf-overrides '{{\"hidden_size\": -1}}'", "hidden_size is -1"),
        (f"{VLLM} --hf-overrides '{{\"num_hidden_layers\": 100000}}'", "num_hidden_layers is 100000"),
        (f"{VLLM} --num-gpu-blocks-override 0", "--num-gpu-blocks-override 0"),
        (f"{VLLM} --max-num-queued-reqs -1", "--max-num-queued-reqs -1"),
        (f"{SGLANG} --cuda-graph-max-bs -1", "--cuda-graph-max-bs -1"),
        (f"{SGLANG} --cuda-graph-bs 0 8", "--cuda-graph-bs 0"),
        (f"{SGLANG} --cpu-offload-gb -1", "--cpu-offload-gb -1"),
        (f"{SGLANG} --ep-num-redundant-experts -1", "--ep-num-redundant-experts -1"),
        (f"{SGLANG} --json-model-override-args '{{\"vocab_size\": 0}}'", "vocab_size is 0"),
        (f"{SGLANG} --json-model-override-args '{{vocab'", "--json-model-override-args"),
        ("docker run --gpus 0 vllm/vllm-openai --model Qwen/Qwen3-8B", "--gpus 0"),
        ("docker run --gpus -2 vllm/vllm-openai --model Qwen/Qwen3-8B", "--gpus -2"),
        ("docker run --gpus many vllm/vllm-openai --model Qwen/Qwen3-8B", "--gpus many"),
        (f"{MEGATRON} --make-vocab-size-divisible-by 0", "--make-vocab-size-divisible-by 0"),
        (f"{MEGATRON} --train-iters -5", "--train-iters"),
    ],
)
def test_engine_commands_that_cannot_be(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(["check", "--gpu", "h100-sxm:8", "--", *shlex.split(command)], capsys)


MANIFEST = """
containers:
  - name: server
    image: vllm/vllm-openai:v0.19.0
    args: ["--model", "Qwen/Qwen3-8B"]
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""
COMPOSE = """
services:
  server:
    image: vllm/vllm-openai:v0.19.0
    command: --model Qwen/Qwen3-8B
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: {gpus}, capabilities: [gpu]}}]}}}}}}
"""


@pytest.mark.parametrize(
    ("manifest", "gpus"),
    [(MANIFEST, "0"), (MANIFEST, "-1"), (MANIFEST, "1.5"), (MANIFEST, "two"), (COMPOSE, "0"), (COMPOSE, "-3")],
)
def test_manifests_that_grant_no_gpu(
    manifest: str, gpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(manifest.format(gpus=gpus))
    assert f": {gpus} grants" in refused(["check", "--gpu", "h100-sxm", "--", str(path)], capsys)


@pytest.mark.parametrize(("manifest", "gpus"), [(MANIFEST, "1"), (COMPOSE, "all"), (COMPOSE, "-1")])
def test_manifests_that_grant_gpus(
    manifest: str, gpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(manifest.format(gpus=gpus))
    assert main(["check", "--gpu", "h100-sxm", "--", str(path)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("precision recipe {m} --gpu h100-sxm:8 --train 0", "--train/--seq: 0 is out of range"),
        ("precision recipe {m} --gpu h100-sxm:8 --global-batch 0", "--global-batch: 0"),
        ("precision recipe {m} --gpu h100-sxm:8 --gpus-per-node 0", "--gpus-per-node: 0"),
        ("precision plan {m} --gpu h100-sxm --budget-gib 1e30", "1e30 is out of range"),
        ("precision plan {m} --gpu h100-sxm --kv-dtype ''", "--kv-dtype: an empty name"),
        ("fit {m} --gpu h100-sxm --kv-dtype ''", "--kv-dtype: an empty name"),
        ("fit {m} --gpu h100-sxm --precision ''", "--precision: an empty name"),
        ("fit {m} --gpu h100-sxm --tp 0", "--tp: 0"),
        ("fit {m} --gpu h100-sxm --nodes 0", "--nodes: 0"),
        ("fit {m} --gpu h100-sxm --free-gib -4", "--free-gib: -4"),
        ("fit {m} --gpu h100-sxm --draft mtp:0", "mtp:0"),
        ("fit {m} --gpu h100-sxm --rate 1e30", "1e30 is out of range"),
        ("fit {m} --gpu h100-sxm:8 --train 4096 --global-batch 8 --tokens T", "--tokens 'T'"),
        ("fit {m} --gpu h100-sxm:8 --train 4096 --global-batch 8 --tokens nanB", "--tokens 'nanB'"),
        ("fit {m} --gpu h100-sxm:8 --train 4096 --global-batch 8 --tokens ' '", "--tokens ''"),
        ("fit {m} --gpu h100-sxm --isl 200000", "200000 tokens a request are more than the"),
        ("fit {m} --gpu h100-sxm --isl 1024 --osl 128 --context 512", "--context 512 is shorter"),
        ("fit {m} --gpu h100-sxm --isl 127 --context 128 --prefill 1xTP1 --decode 1xTP1", "nothing to do"),
        ("validate nothing.csv --worst -5", "--worst"),
    ],
)
def test_options_that_cannot_be(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(shlex.split(words.format(m="meta-llama/Llama-3.1-8B")), capsys)


def test_prompts_alone_leave_the_context_to_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt length without an output length says nothing of the longest request."""
    assert main(["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--isl", "128", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["inputs"]["plan"]["context"] == 131_072
    assert any("outputs of 1,024 tokens" in one["message"] for one in alone["warnings"])


def judged(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["check", "--gpu", "h100-sxm", "--json", "--", *shlex.split(command)])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_number_of_blocks_replaces_the_profiled_one(capsys: pytest.CaptureFixture[str]) -> None:
    """160,000 tokens are 10,000 blocks of 16; as many as no card holds cannot be captured."""
    fewer = judged(f"{VLLM} --num-gpu-blocks-override 10000", capsys)
    assert fewer["fits"]
    assert fewer["kv_cache"]["tokens"] == 160_000
    more = judged(f"{VLLM} --num-gpu-blocks-override 1000000", capsys)
    assert not more["fits"]
    assert "-" not in more["reason"].replace("KV-", "")


def test_a_fixed_pool_beyond_the_card_shows_no_negative_memory(capsys: pytest.CaptureFixture[str]) -> None:
    answer = judged(f"{VLLM} --kv-cache-memory-bytes 999G", capsys)
    assert not answer["fits"]
    assert "999.00 GiB" in answer["reason"]
    assert " -" not in answer["reason"]


@pytest.mark.parametrize(
    "command",
    [
        f"{VLLM} --hf-overrides '{{\"num_hidden_layers\": 16}}'",
        f"{SGLANG} --json-model-override-args '{{\"num_hidden_layers\": 16}}'",
    ],
)
def test_an_overridden_configuration_is_the_one_judged(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the 32 layers of 218 million parameters beside two matrices of 128,256 x 4,096."""
    parameters = judged(command, capsys)["inputs"]["model"]["parameters"]
    assert parameters == pytest.approx(16 * 218.1e6 + 2 * 128_256 * 4096, rel=1e-3)


def test_a_budget_below_the_smallest_plan_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = "precision plan meta-llama/Llama-3.1-8B --gpu h100-sxm --budget-gib 0.0001"
    assert main(words.split()) == 1
    assert "0.0001 GiB as asked; they take 5.31 GiB and no smaller plan is left" in capsys.readouterr().out
