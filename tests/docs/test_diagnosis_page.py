"""The examples of docs/diagnosis.md run: its shell and Python, and the reader and the rule that it adds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main
from trilemma.diagnosis.findings import Case, Reading
from trilemma.diagnosis.readers import every_reader

PAGE = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_in_a_shell_and_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = next(one for one in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "echo" in one)
    codes = []
    for line in shell.splitlines():
        if line.startswith("echo"):
            _, text, mode, name = shlex.split(line)
            with Path(name).open("a" if mode == ">>" else "w") as stream:
                stream.write(text + "\n")
        else:
            codes.append(main(shlex.split(line.partition(" ||")[0])[1:]))
    assert codes == [1, 0]
    exec(PYTHON[0], {})


def test_a_reader_and_a_rule_are_one_module_each() -> None:
    reader: dict[str, Any] = {}
    rule: dict[str, Any] = {}
    exec(PYTHON[1], reader)
    exec(PYTHON[2], rule)
    gatherer = reader["READER"].begin()
    for number in range(3):
        gatherer.take("eth0: link is down", number + 1)
    case = Case(readings=(Reading(file="a", kind="link-log", parts=(gatherer.part(),)),))
    (finding,) = rule["RULE"].judge(case)
    assert finding.evidence[2].line == 3
    assert reader["READER"].begin().part() is None


def test_every_kind_is_on_the_page() -> None:
    assert {reader.kind for reader in every_reader()} <= set(re.findall(r"`([a-z-]+)`", PAGE))
