"""Commands of models that bring code of their own say so, on screen, in remedies and in files alike."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from trilemma import engines
from trilemma.cli.main import main
from trilemma.models import catalogue
from trilemma.models.remote_code import needs_remote_code
from trilemma.plans import EngineRef, Plan

FLAG = "--trust-remote-code"


@pytest.mark.parametrize(
    ("word", "needed"),
    [
        ("moonshotai/Kimi-K2-Instruct", True),  # vllm-project/recipes pull request 116
        ("kimi-k2.5", True),
        ("./Kimi-K2-Instruct-awq", True),
        ("/models/Kimi-K2-Thinking", True),
        ("moonshotai/Moonlight-16B-A3B", True),
        ("MiniMaxAI/MiniMax-M2", True),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", True),
        ("Qwen/Qwen3-32B", False),
        ("deepseek-ai/DeepSeek-V3", False),  # transformers has the family
        ("moonshotai/Kimi-Dev-72B", False),  # a Qwen2
        ("someone/unknown", False),
        ("./own-model", False),
    ],
)
def test_which_models_bring_code(word: str, needed: bool) -> None:
    assert needs_remote_code(word) is needed


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "transformers-serve"])
def test_every_engine_is_told(engine: str) -> None:
    plan, flag = Plan(engine=EngineRef(name=engine)), FLAG.replace("-", "_") if engine == "tensorrt-llm" else FLAG
    told = [
        word.replace("-", "_") for word in engines.get(engine).write(model="moonshotai/Kimi-K2-Instruct", plan=plan)
    ]
    assert flag.replace("-", "_") in told
    words = engines.get(engine).write(model="moonshotai/Kimi-K2-Instruct", plan=plan)
    assert engines.get(engine).read(words).facts["server"]["trust-remote-code"] is True
    assert not any("trust" in word for word in engines.get(engine).write(model="Qwen/Qwen3-8B", plan=plan))


def test_fit_and_export_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "kimi-k2 --gpu h200-sxm:16"
    assert main(["fit", *words.split()]) == 0
    assert FLAG in capsys.readouterr().out
    plan = tmp_path / "plan.json"
    main(["fit", *words.split(), "--json"])
    plan.write_text(capsys.readouterr().out)
    for target in ("vllm", "kubernetes"):
        out = tmp_path / target
        assert main(["export", str(plan), "--to", target, "--output", str(out)]) == 0
        capsys.readouterr()
        files = [path.read_text() for path in out.rglob("*") if path.is_file()]
        assert any("trust-remote-code" in text for text in files), target


def test_check_says_what_the_command_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve moonshotai/Kimi-K2-Instruct --tensor-parallel-size 16 --max-model-len 8192"
    main(shlex.split(f"check --gpu h200-sxm:16 -- {command}"))
    lacks = " ".join(capsys.readouterr().out.split())
    assert "without --trust-remote-code the engine stops" in lacks
    assert "more than 99 % sure" not in lacks
    main(shlex.split(f"check --gpu h200-sxm:16 -- {command} --trust-remote-code"))
    assert "brings code of its own" not in capsys.readouterr().out


def test_names_of_the_table_are_entries() -> None:
    from trilemma.data.files import read_data

    for row in read_data("models/remote_code.toml")["family"]:
        assert set(row.get("names", ())) <= set(catalogue.names())
        known = {catalogue.config(name).get("model_type") for name in catalogue.names()}
        assert set(row["model_types"]) <= known
