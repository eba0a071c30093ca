"""Weights on the machine where a command will run: known here by their name, under home folders too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.cli.main import main


@pytest.mark.parametrize("path", ["~/models/Llama-3.1-8B", "/data/Llama-3.1-8B", "./Llama-3.1-8B", "../Llama-3.1-8B"])
def test_a_path_that_is_not_here_is_known_by_its_name(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--gpu", "h100-sxm", "--json", "--", "vllm", "serve", path, "--max-model-len", "4096"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert any(one["code"] == "model-elsewhere" and path in one["message"] for one in found["warnings"])
    assert found["inputs"]["model"]["parameters"] == 8030261248


def test_a_name_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--gpu", "h100-sxm", "--", "vllm", "serve", "~/models/own-thing"]) == 2
    assert "'own-thing' is no known model; give a path that exists or a hub id" in capsys.readouterr().err


Q4_K_M = "Qwen3-8B-Q4_K_M"


@pytest.mark.parametrize(
    "words",
    [
        f"-m|{Q4_K_M}.gguf",
        f"-m|/m/{Q4_K_M}.gguf",
        f"-m|models/{Q4_K_M}.gguf",
        f"-m|C:\\models\\{Q4_K_M}.gguf",
        f"-m|D:/models/{Q4_K_M}.GGUF",
        f"-m|\\\\nas\\models\\{Q4_K_M}.gguf",
        f"-m|~/{Q4_K_M}-00001-of-00002.gguf",
        f"-m|/models/{Q4_K_M}/model.gguf",
        f"-mu|https://huggingface.co/unsloth/Qwen3-8B-GGUF/resolve/main/{Q4_K_M}.gguf?download=true",
        "-hf|https://huggingface.co/unsloth/Qwen3-8B-GGUF:Q4_K_M",
        "-hf|hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M",
        f"-hf|unsloth/Qwen3-8B-GGUF|--hf-file|{Q4_K_M}.gguf",
    ],
)
def test_weights_files_that_are_not_here_are_known_by_their_names(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """4.68 GiB: the size of unsloth's and Qwen's own Qwen3-8B-Q4_K_M.gguf (5.03 GB)."""
    command = ["llama-server", *words.split("|"), "-c", "8192"]
    assert main(["check", "--gpu", "rtx-3090", "--json", "--", *command]) == 0
    found = json.loads(capsys.readouterr().out)
    weights = next(line for line in found["memory"]["items"] if line["name"] == "weights")
    embedding_on_host = 151936 * 4096 * 4.5 / 8
    assert weights["bytes"] + embedding_on_host == pytest.approx(5.03e9, rel=0.03)


@pytest.mark.parametrize(
    "path",
    [
        "/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/d04e592bb4f6aa9cfee91e2e20afa771667e1d4b",
        "C:\\models\\Llama-3.1-8B",
        "/mnt/Llama-3.1-8B/model-00001-of-00004.safetensors",
        "https://huggingface.co/meta-llama/Llama-3.1-8B/tree/main",
        "https://modelscope.cn/models/meta-llama/Llama-3.1-8B",
    ],
)
@pytest.mark.parametrize(
    "head",
    ["vllm serve", "python3 -m sglang.launch_server --model-path", "trtllm-serve serve"],
    ids=lambda head: head[:6],
)
def test_folders_of_elsewhere_for_every_engine(head: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--gpu", "h200-sxm", "--json", "--", *head.split(), path]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["model"]["parameters"] == 8030261248


def test_a_file_that_is_here_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Qwen3-8B-Q4_K_M.gguf").write_bytes(b"not a model")
    assert main(["check", "--gpu", "rtx-3090", "--", "llama-server", "-m", str(tmp_path / "Qwen3-8B-Q4_K_M.gguf")]) == 2
    assert "GGUF" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "gib"),
    [
        (("-m", "gpt-oss-20b.gguf"), 10.67),
        (("-m", "gpt-oss-20b-mxfp4.gguf"), 10.67),
        (("-hf", "ggml-org/gpt-oss-20b-GGUF"), 10.67),
        (("-m", "gpt-oss-20b-F16.gguf"), 11.74),
    ],
)
def test_a_gguf_file_holds_a_checkpoint_as_it_is_published_so(words: tuple[str, ...], gib: float) -> None:
    """ggml-org/gpt-oss-20b-GGUF: 12.1 GB, experts in MXFP4 and the rest in Q8_0; unsloth's F16 keeps the rest: 13.8 GB. The
    embedding (0.57 and 1.08 GiB) stays with the host."""
    found = tl.check(["llama-server", *words, "-c", "8192"], gpu="h100-sxm").to_dict()
    weights = next(line["bytes"] for line in found["memory"]["items"] if line["name"] == "weights")
    assert weights / 2**30 == pytest.approx(gib, abs=0.01)
