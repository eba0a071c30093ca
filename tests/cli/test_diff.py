"""What a change of a command or manifest changes, through the command line, a git checkout and the action."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

import trilemma
from trilemma.ask.differing import diff
from trilemma.cli.main import main
from trilemma.report.schemas import schema_of

ROOT = Path(__file__).parents[2]
BEFORE = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8"


def asked(*words: str) -> int:
    return main(["diff", *words])


def test_nothing_is_said_where_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    same = "vllm serve --tensor-parallel-size=8 --model meta-llama/Llama-3.1-70B-Instruct"
    assert asked("--gpu", "h100-sxm:8", BEFORE, same) == 0
    assert capsys.readouterr().out == ""


def test_figures_that_moved_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    after = f"{BEFORE[:-1]}4 --max-model-len 32768"
    assert asked("--gpu", "h100-sxm:8", BEFORE, after) == 0
    out = capsys.readouterr().out
    assert "| GPUs | 8 | 4 | -50.0% |" in out
    assert "tokens in the KV cache" in out
    assert out.count(" worse |") == 4  # the cache, both latencies, throughput
    for line in out.splitlines():
        assert line.count("|") in (0, 5)


def test_figures_are_those_of_check() -> None:
    before, after = (trilemma.check(f"{BEFORE[:-1]}{tp}", gpu="h100-sxm:8") for tp in (8, 4))
    rows = {row.figure: row for row in diff(BEFORE, f"{BEFORE[:-1]}4", "h100-sxm:8").commands[0].figures}
    assert before.speed is not None
    assert before.speed.tpot_s is not None
    assert after.speed is not None
    assert after.speed.tpot_s is not None
    tpot = rows["tpot_ms"]
    assert tpot.before == pytest.approx(before.speed.tpot_s.interval.value * 1e3)
    assert tpot.after == pytest.approx(after.speed.tpot_s.interval.value * 1e3)
    assert tpot.change == pytest.approx(after.speed.tpot_s.interval.value / before.speed.tpot_s.interval.value - 1)
    assert (tpot.worse, rows["gpus"].worse, rows["kv_cache_tokens"].worse) == (True, False, True)


@pytest.mark.parametrize(
    ("limits", "code"),
    [([], 0), (["--worse", "5%"], 1), (["--worse", "ttft_ms=90%"], 0), (["--worse", "tpot_ms=0.05"], 1)],
)
def test_limits_stop_what_is_worse(limits: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("--gpu", "h100-sxm:8", *limits, BEFORE, f"{BEFORE[:-1]}4 --max-model-len 32768") == code
    assert ("**stopped**" in capsys.readouterr().out) is bool(code)


def test_what_no_longer_starts_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("--gpu", "h100-sxm:8", BEFORE, f"{BEFORE[:-1]}1") == 1
    out = capsys.readouterr().out
    assert "before: starts" in out
    assert "after: **does not start (oom_load)" in out
    assert asked("--gpu", "h100-sxm:8", f"{BEFORE[:-1]}1", BEFORE) == 0  # mended


def test_a_document_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    asked("--gpu", "h100-sxm:8", "--json", BEFORE, f"{BEFORE[:-1]}1")
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema_of("diff"))
    assert document["commands"][0]["after"]["stage"] == "oom_load"
    assert document["commands"][0]["before"]["fits"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([BEFORE], "give two, before and after"),
        (["a.yaml", "b.yaml"], "a.yaml is no file"),
        (["--least", "x", BEFORE, BEFORE], "--least 'x' is no share"),
        (["--worse", "speed=5%", BEFORE, BEFORE], "'speed' is no figure"),
        (["--rev", "--help", "a.yaml"], "expected one argument"),
        (["--rev=-x", "a.yaml"], "is no revision"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(*words) == 2
    assert said in capsys.readouterr().err


def test_words_of_others_make_no_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "vllm serve 'acme/<img src=x>|`x`'"
    assert asked("--gpu", "h100-sxm", BEFORE.replace("8", "1"), evil) == 0
    out = capsys.readouterr().out
    assert "<img" not in out.replace("\\<img", "")


# ---- files of a checkout ---------------------------------------------------------------------------------------------


def manifest(tp: int, *, name: str = "llama") -> str:
    words = [
        "--model",
        "meta-llama/Llama-3.1-70B-Instruct",
        "--tensor-parallel-size",
        str(tp),
        "--max-model-len",
        "8192",
    ]
    limits = {"nvidia.com/gpu": tp}
    container = {"name": "engine", "image": "vllm/vllm-openai:v0.19.0", "args": words, "resources": {"limits": limits}}
    pods = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "containers": [container]}
    return yaml.safe_dump(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"template": {"spec": pods}},
        }
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two manifests and a note, committed; one is changed since, one is new."""
    folder = tmp_path / "deploy"
    folder.mkdir()
    for name, text in (
        ("a.yaml", manifest(8)),
        ("b.yaml", manifest(4, name="other")),
        ("values.yaml", "colour: blue\n"),
    ):
        (folder / name).write_text(text)
    for words in (
        ["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "first"],
    ):  # fmt: skip
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (folder / "a.yaml").write_text(manifest(1))
    (folder / "values.yaml").write_text("colour: red\n")
    (folder / "new.yaml").write_text(manifest(4, name="new"))
    return tmp_path


def test_files_are_compared_with_a_revision(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("--rev", "HEAD", str(checkout / "deploy")) == 1
    out = capsys.readouterr().out
    heads = [line for line in out.splitlines() if line.startswith("### ")]
    assert len(heads) == 2
    assert heads[0].endswith("a.yaml llama/engine")
    assert heads[1].endswith("new.yaml new/engine")
    assert "new: starts" in out
    assert "**stopped**: does not start" in out
    (checkout / "deploy" / "a.yaml").unlink()
    assert asked("--rev", "HEAD", str(checkout / "deploy" / "a.yaml")) == 0
    assert "gone: starts" in capsys.readouterr().out
    assert asked("--rev", "nothing", str(checkout / "deploy")) == 2


def test_the_action_writes_the_summary(checkout: Path) -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    script, summary = steps[-1]["run"], checkout / "summary.md"
    folder = checkout / "bin"
    folder.mkdir()
    (folder / "trilemma").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m trilemma "$@"\n')
    (folder / "trilemma").chmod(0o755)
    stated = dict.fromkeys(steps[-1]["env"], "") | {
        "BASE": "HEAD",
        "PATHS": "deploy",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    assert set(stated) >= {"GPU", "WORSE"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=checkout, capture_output=True, text=True, check=False,
        env={**os.environ, **stated, "PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "**stopped**" in summary.read_text()


def test_hooks_name_commands_that_are_there() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for hook in hooks:
        with pytest.raises(SystemExit) as ended:
            main([*hook["entry"].split()[1:2], "--help"])
        assert ended.value.code == 0


@pytest.mark.parametrize("card", ["h100", "nosuchcard"])
def test_a_card_that_nobody_knows_is_no_change_of_nothing(card: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both sides would be unjudged for one reason, and a job that checks pull requests would pass for ever."""
    assert asked("--gpu", card, BEFORE, f"{BEFORE[:-1]}4") == 2
    told = capsys.readouterr().err
    assert card in told
    assert len(told.splitlines()) == 1


def test_commands_that_differ_and_cannot_be_judged_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve nobody/knows-this"
    assert asked("--gpu", "h100-sxm", command, f"{command} --max-num-seqs 3") == 0
    assert "not judged: " in capsys.readouterr().out
    assert asked("--gpu", "h100-sxm", command, command) == 0
    assert capsys.readouterr().out == ""


def test_why_not_judged_names_flags(capsys: pytest.CaptureFixture[str]) -> None:
    asked(BEFORE, f"{BEFORE[:-1]}4")
    out = capsys.readouterr().out
    assert "--gpu" in out
    assert "`" not in out


def test_a_folder_without_git_and_a_card_that_nobody_knows_are_refused_though_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked("--rev", "HEAD", str(tmp_path)) == 2
    assert "lies in no git checkout" in capsys.readouterr().err
    assert asked("--rev", "HEAD", "--gpu", "nosuchcard", str(tmp_path)) == 2
    assert "nosuchcard" in capsys.readouterr().err


MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  template:
    spec:
      containers:
      - {name: NAME, image: vllm/vllm-openai:v0.11.0, args: [--model, Qwen/Qwen3-8B, --max-model-len, "LENGTH"]}
"""


@pytest.mark.parametrize("turned", [False, True])
def test_a_manifest_beside_a_command_is_one_engine(
    turned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dep.yaml"
    file.write_text(MANIFEST.replace("NAME", "vllm").replace("LENGTH", "8192"))
    sides = [str(file), "vllm serve Qwen/Qwen3-8B --max-model-len 16384"]
    assert asked("--gpu", "h100-sxm", "--json", *(reversed(sides) if turned else sides)) == 0
    (one,) = json.loads(capsys.readouterr().out)["commands"]
    assert one["name"] == "llama/vllm"
    assert one["before"]["fits"]
    assert one["after"]["fits"]
    figures = {figure["figure"]: figure["change"] for figure in one["figures"]}
    assert (figures["max_concurrency"] > 0) is turned


def test_an_engine_that_is_renamed_is_the_same(tmp_path: Path) -> None:
    before, after, others = (tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml"))
    before.write_text(MANIFEST.replace("NAME", "old").replace("LENGTH", "8192"))
    after.write_text(MANIFEST.replace("NAME", "new").replace("LENGTH", "16384"))
    others.write_text("---\n".join(MANIFEST.replace("NAME", one).replace("LENGTH", "8192") for one in ("new", "newer")))
    (one,) = diff(before, after, "h100-sxm").commands
    assert one.name == "llama/old → llama/new"
    names = [(one.name, one.before is None, one.after is None) for one in diff(before, others, "h100-sxm").commands]
    assert names == [("llama/old", False, True), ("llama/new", True, False), ("llama/newer", True, False)]
