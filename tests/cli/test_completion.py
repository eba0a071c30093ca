"""The shells complete what the parsers take."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest

from asking import screen
from trilemma.cli.completion import SHELLS, completion
from trilemma.cli.main import COMMANDS, main

#: (what is typed, the last word unfinished; words that it completes to; a word that it must not complete to)
TYPED = [
    ("trilemma pl", {"plan"}, "compare"),
    ("trilemma plan llama-3.1-8", {"llama-3.1-8b"}, "qwen3-8b"),
    ("trilemma plan qwen3-8b --gpu h200-", {"h200-sxm", "h200-nvl"}, "h100-sxm5-80gb"),
    ("trilemma fit qwen3-8b --global-", {"--global-batch"}, "--gpu"),
    ("trilemma fit qwen3-8b --engine sg", {"sglang"}, "vllm"),
    ("trilemma precision pl", {"plan"}, "gate"),
    ("trilemma precision plan --pres", {"--preset"}, "--plan"),
    ("trilemma plan qwen3-8b --pools dis", {"disaggregated"}, "both"),
    ("trilemma completion z", {"zsh"}, "bash"),
]


@cache
def script(shell: str) -> str:
    return screen(f"completion {shell}")


def test_every_command_and_option_is_completed():
    found = {one.words: one for one in completion().commands}
    assert {words[0] for words in found} == set(COMMANDS)
    assert ("precision", "recipe") in found
    assert "--ttft" in {flag for option in found["plan",].options for flag in option.flags}
    assert "--recompute" in {flag for option in found["plan",].options for flag in option.flags}
    for shell in SHELLS:
        text = script(shell)
        for one in found.values():
            assert one.words[-1] in text
            assert all(flag.removeprefix("--") in text for option in one.options for flag in option.flags)


@pytest.mark.parametrize(("typed", "wanted", "other"), TYPED)
def test_bash_completes(typed, wanted, other, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    words = " ".join(f"'{word}'" for word in typed.split())
    ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _trilemma; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    run = subprocess.run(["bash", "-c", script("bash") + ask], capture_output=True, text=True, check=True, cwd=tmp_path)
    told = set(run.stdout.split())
    assert not run.stderr
    assert wanted <= told
    assert other not in told


@pytest.mark.parametrize(("typed", "wanted", "other"), TYPED)
def test_fish_completes(typed, wanted, other, tmp_path):
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    (tmp_path / "ask.fish").write_text(script("fish") + f"complete -C '{typed}'\n", encoding="utf-8")
    run = subprocess.run(
        ["fish", "--no-config", str(tmp_path / "ask.fish")], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    told = {line.partition("\t")[0] for line in run.stdout.splitlines()}
    assert wanted <= told
    assert other not in told


def test_zsh_takes_the_script(tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    ask = "autoload -Uz compinit && compinit -u -D\n" + script("zsh") + "\nprint -- $_comps[trilemma]"
    run = subprocess.run(
        ["zsh", "-f", "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path, env={"HOME": str(tmp_path)}
    )
    assert "trilemma" in run.stdout
    assert not run.stderr


def test_a_shell_that_is_not_known_is_refused_in_one_line(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_asked_is_answered_with_three_commands_that_run(capsys):
    assert main([]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = [line for line in shown if line.startswith("trilemma ") and "--gpu" in line]
    assert len(examples) == 3
    assert all(len(line) <= 100 for line in shown)
    for line in examples:
        command, _, words = line.removeprefix("trilemma ").partition(" -- ")
        assert main([*command.split(), *(["--", *words.split()] if words else [])]) in (0, 1)
        assert capsys.readouterr().out
