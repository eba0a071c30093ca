"""check, fit, plan and export on SGLang, TensorRT-LLM, llama.cpp and Transformers through the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from trilemma.cli.main import main
from trilemma.engines import get, traits_of
from trilemma.engines.extract import extract

_SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --context-length 8192"


@pytest.mark.parametrize(
    ("gpu", "command", "code", "stage"),
    [
        ("h100-sxm:2", _SGLANG, 0, "ok"),
        ("h100-sxm:2", f"{_SGLANG} --mem-fraction-static 0.3", 1, "oom_profile"),
        ("h100-sxm", "sglang serve --model-path Qwen/Qwen3-32B --tp 1 --mem-fraction-static 0.7", 1, "oom_profile"),
        ("h100-sxm:2", f"docker run lmsysorg/sglang:v0.5.10 {_SGLANG}", 0, "ok"),
        ("h100-sxm:2", "trtllm-serve Qwen/Qwen3-32B --tp_size 2", 0, "ok"),
        ("rtx-4090", "trtllm-serve Qwen/Qwen3-32B", 1, "oom_load"),
        ("rtx-4090", "llama-server -hf Qwen/Qwen3-32B-GGUF:Q4_K_M", 0, "ok"),
        ("rtx-4090", "llama-server -hf Qwen/Qwen3-32B-GGUF:Q8_0 -ngl 99 -c 8192", 1, "oom_load"),
        ("rtx-4090:2", "llama-server -hf Qwen/Qwen3-32B-GGUF:Q8_0 -ngl 99 -c 8192", 0, "ok"),
        ("rtx-4090", "transformers serve Qwen/Qwen3-8B", 0, "ok"),
        ("rtx-4090", "transformers serve Qwen/Qwen3-32B", 1, "oom_load"),
    ],
)  # fmt: skip
def test_check(capsys: pytest.CaptureFixture[str], gpu: str, command: str, code: int, stage: str) -> None:
    assert main(["check", "--gpu", gpu, "--json", "--", *shlex.split(command)]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["stage"] == stage
    items = document["memory"]["items"]
    assert sum(item["bytes"] for item in items) == pytest.approx(document["memory"]["total_bytes"], rel=1e-9, abs=8)
    own = extract([command])[0]
    for remedy in document.get("remedies", ()):
        found = extract([remedy["flags"]])[0]
        assert (found == own) != (f" instead of {traits_of(own).label}" in remedy["change"])


def test_logs_of_other_engines_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "start.log"
    log.write_text("KV Cache is allocated.")
    line = ["check", "--gpu", "h100-sxm:2", "--log", str(log), "--", "transformers", "serve", "Qwen/Qwen3-8B"]
    assert main(line) == 2
    assert "--log reads logs of vLLM or SGLang" in capsys.readouterr().err
    assert main([*line[:5], "--", *shlex.split(_SGLANG)]) == 2
    assert "holds no line of a SGLang start" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "llama.cpp"])
def test_fit_then_export(tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    line = f"fit Qwen/Qwen3-8B --gpu h100-sxm:1 --engine {engine} --isl 2048 --osl 512 --max-seqs 8 --json"
    assert main(shlex.split(line)) == 0
    path = tmp_path / "fit.json"
    path.write_text(capsys.readouterr().out)
    assert main(["export", str(path), "--to", engine, "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    found, words = extract([str(tmp_path / "out" / "serve.sh")])
    assert found == engine
    plan = get(found).read(words).plan
    assert plan.pool.options.max_seqs == 8
    assert plan.pool.options.context == 2560
    manifest = tmp_path / "out" / "kubernetes.yaml"
    if engine == "llama.cpp":
        # Its command names a file that is converted here, which no container has.
        assert not manifest.exists()
        return
    kinds = [one["kind"] for one in yaml.safe_load_all(manifest.read_text())]
    assert kinds[-2:] == ["Deployment", "Service"]
    assert extract([str(manifest)])[0] == engine


def test_export_to_another_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("fit Qwen/Qwen3-8B --gpu h100-sxm:2 --isl 2048 --osl 512 --kv-dtype fp8 --json")) == 0
    path = tmp_path / "fit.json"
    path.write_text(capsys.readouterr().out)
    assert main(["export", str(path), "--to", "sglang", "-o", str(tmp_path / "out")]) == 0
    assert "judged for vllm" in capsys.readouterr().err
    script = (tmp_path / "out" / "serve.sh").read_text()
    assert "--kv-cache-dtype fp8_e4m3" in script
    assert "--tp-size 2" in script
    assert not (tmp_path / "out" / "prediction.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "llama.cpp"])
def test_plan_searches(capsys: pytest.CaptureFixture[str], engine: str) -> None:
    line = f"plan Qwen/Qwen3-32B --gpu h100-sxm:4 --engine {engine} --serve 2048/512 --json"
    assert main(shlex.split(line)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plans"]
    assert all(plan["inputs"]["engine"]["name"] == engine for plan in document["plans"])
