"""The screen tells the commands of several nodes in the words of the files that are exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trilemma.cli.main import main


def _told(capsys: pytest.CaptureFixture[str], words: str) -> list[str]:
    main(words.split())
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("run it")
    return [line.strip() for line in lines[at + 1 : lines.index("", at)]]


@pytest.mark.parametrize(
    ("words", "first", "other"),
    [
        # vllm/engine/arg_utils.py: --nnodes, --node-rank, --master-addr and --headless on the nodes that serve nothing
        ("fit kimi-k2 --gpu h200-sxm:16", "--nnodes 2 --node-rank 0 --master-addr NODE0", "--node-rank 1 --master-addr"),
        ("fit deepseek-r1 --gpu h200-sxm:16 --engine sglang", "--node-rank 0 --dist-init-addr NODE0:20000", "--node-rank 1"),
        ("fit deepseek-r1 --gpu h200-sxm:16 --dp 16 --ep", "--data-parallel-size-local 8", "--data-parallel-start-rank 8"),
        ("fit deepseek-r1 --gpu h200-sxm:16 --engine vllm@0.9.2", "ray start --head", "ray start --address=NODE0:6379"),
    ],
)  # fmt: skip
def test_each_node_has_its_command(capsys: pytest.CaptureFixture[str], words: str, first: str, other: str) -> None:
    leader, worker = _told(capsys, words)
    assert leader.startswith("on node 0")
    assert first in leader
    assert worker.startswith("on node 1")
    assert other in worker


def test_documents_hold_the_commands_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """``command`` alone, without its node, would run on no node."""
    main(["fit", "kimi-k2", "--gpu", "h200-sxm:32", "--engine", "sglang", "--tp", "8", "--pp", "4", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [(one["first_node"], one["last_node"]) for one in document["node_commands"]] == [(0, 0), (1, 3)]
    assert "--nnodes 4 --node-rank 1" in document["node_commands"][1]["command"]
    main(["fit", "qwen3-32b", "--gpu", "h100-sxm:8", "--json"])
    assert "node_commands" not in json.loads(capsys.readouterr().out)


def test_screen_and_script_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "fit kimi-k2 --gpu h200-sxm:16"
    leader, _ = _told(capsys, words)
    main([*words.split(), "--json"])
    plan = tmp_path / "plan.json"
    plan.write_text(capsys.readouterr().out)
    assert main(["export", str(plan), "--to", "vllm", "--output", str(tmp_path / "files")]) == 0
    scripts = " ".join(path.read_text() for path in (tmp_path / "files").rglob("*.sh"))
    flags = [word for word in leader.partition("vllm serve")[2].split() if word.startswith("--")]
    assert len(flags) > 4
    assert all(flag in scripts for flag in flags)


def test_engines_that_stay_on_a_node_have_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(capsys, "fit qwen3-8b --gpu h100-sxm:16 --replicas 16") == ["vllm serve Qwen/Qwen3-8B"]
    assert _told(capsys, "fit qwen3-32b --gpu h100-sxm:8") == ["vllm serve Qwen/Qwen3-32B --tensor-parallel-size 8"]
