"""``trilemma upgrade``: flags, rules, options and memory of one command under two versions."""

from __future__ import annotations

import json
import shlex
from typing import Any

import jsonschema
import pytest

from trilemma.cli.main import main
from trilemma.report.schemas import schema_of


def _run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    code = main(["upgrade", *shlex.split(line)])
    out, err = capsys.readouterr()
    return code, out, err


def _document(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    _, out, _ = _run(capsys, f"--json {line}")
    document: dict[str, Any] = json.loads(out)
    jsonschema.validate(document, schema_of("upgrade"))
    assert document["schema"] == "trilemma/upgrade@1"
    return document


def test_vllm_profiles_graphs_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--from 0.19 --to 0.21 --gpu h100-sxm -- vllm serve Qwen/Qwen3-14B --max-model-len 32768 --max-num-seqs 256"
    found = _document(capsys, line)
    assert {rule["name"] for rule in found["rules"]} >= {"memory_fraction", "graphs_in_budget"}
    assert {"name": "memory fraction", "before": 0.9, "after": 0.92} in found["options"]
    assert found["harmless"]
    assert not found["refused"]
    pools = [found[side]["kv_cache"]["available_bytes_per_gpu"] for side in ("before", "after")]
    lines = {line["name"]: line["after_bytes"] - line["before_bytes"] for line in found["memory"]}
    assert lines["kv_cache"] == pytest.approx(pools[1] - pools[0], abs=1)


def test_dead_flags_are_told_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "--from 0.19 --to 0.33 --gpu h100-sxm -- vllm serve Qwen/Qwen3-14B --max-model-len 8192 --calculate-kv-scales"
    )
    code, out, _ = _run(capsys, line)
    assert code == 1
    assert "1 flag is refused" in out
    assert "has no --calculate-kv-scales" in out
    assert "--calculate-kv-scales" not in out.splitlines()[-1]


def test_renamed_flags_move(capsys: pytest.CaptureFixture[str]) -> None:
    command = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --cuda-graph-max-bs 64"
    found = _document(capsys, f"--from 0.5.8 --to 0.5.23 --gpu h100-sxm -- {command}")
    assert found["renamed"] == [{"from": "--cuda-graph-max-bs", "to": "--cuda-graph-max-bs-decode"}]
    assert found["command"].endswith("--cuda-graph-max-bs-decode 64")
    assert not found["harmless"]


def test_llama_cpp_puts_layers_on_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    found = _document(capsys, "--from b6170 --to b10800 --gpu rtx-4090 -- llama-server -hf Qwen/Qwen3-8B-GGUF:Q8_0")
    weights = next(line for line in found["memory"] if line["name"] == "weights")
    assert weights["before_bytes"] == 0
    assert weights["after_bytes"] > 7 * 2**30
    assert {"longest request", "most sequences"} <= {option["name"] for option in found["options"]}


def test_a_version_against_itself_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = _document(capsys, "--from 0.19 --to 0.19 --gpu h100-sxm -- vllm serve Qwen/Qwen3-14B --max-model-len 8192")
    assert found["rules"] == found["options"] == found["refused"] == found["renamed"] == []
    assert all(line["before_bytes"] == line["after_bytes"] for line in found["memory"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--from 0.19 --to nonsense --gpu h100-sxm -- vllm serve Qwen/Qwen3-14B", "nonsense"),
        ("--from 0.19 --to 0.21 -- vllm serve Qwen/Qwen3-14B", "--gpu"),
        ("--from 0.19 --to 0.21 --gpu h100-sxm", "no engine command"),
        ("--from 1 --to 2 --gpu h100-sxm -- accelerate launch train.py", "trains models"),
    ],
)
def test_bad_questions(capsys: pytest.CaptureFixture[str], line: str, says: str) -> None:
    code, _, err = _run(capsys, line)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_a_command_that_fails_under_both_versions_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = "upgrade --from 0.19 --to 0.21 --gpu l4 -- vllm serve meta-llama/Llama-3.1-70B"
    assert main(words.split()) == 1
    assert "nor does it under 0.19" in capsys.readouterr().out
