"""Every command that the README and the docs show runs, and the run command of the README is the one that users copy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from trilemma.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What an example may leave to the reader: a file of their own, an ellipsis, a shell pipeline.
OPEN = (
    "…", "...", ".csv", ".log", "plans.json", "FILE", "MODEL", "NAME", "|", ".jsonl", "path/", "mycard", "my-", "bench.json",
    "*.json", "--profile",
)  # fmt: skip
FENCE = re.compile(r"```(?:sh|console|bash|shell)\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(trilemma [^`]+)`")


def commands() -> list[tuple[str, str]]:
    """(page, line) of every command, once: pages share many."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [
            line.removeprefix("$ ") for block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()
        ]
        lines += [line for line in INLINE.findall(text) if re.match(r"trilemma \w+ [^-]", line)]  # others only name it
        for line in lines:
            line = line.rpartition("&& ")[2].partition("  #")[0].strip()
            if line.startswith("trilemma ") and not any(mark in line for mark in OPEN):
                found.setdefault(line, page.name)
    return sorted((page, line) for line, page in found.items())


@pytest.mark.parametrize(("page", "line"), commands())
def test_shown_commands_run(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(shlex.split(line)[1:])
    shown = capsys.readouterr()
    assert code in (0, 1), f"{page}: {line}: {shown.err}"
    assert shown.out.strip()


def test_readme_marks_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for what in ("run", "test"):
        match = re.search(rf"<!-- command: {what} -->\n```sh\n([^\n]+)\n```", text)
        assert match is not None
        assert match.group(1).startswith("python3 -m pip install")
