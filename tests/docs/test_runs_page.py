"""The example of docs/runs.md runs, and every sub-command is on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.runs import SUB_COMMANDS
from trilemma.runs.store import RunLedger

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")


def test_the_example_records_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/runs.md", "exec"), {})
    with RunLedger(tmp_path / "runs.db", must_exist=True) as ledger:
        kept = ledger.run("8b-bf16")
    assert kept.figures == {"step_s": 5.1, "loss": 2.3, "mfu": 0.41}
    assert "step_s" in kept.estimate["speed"]


def test_once_around_comes_nearer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan, export, run, record, anchor: the next estimate of a load that was not given is nearer."""
    monkeypatch.chdir(tmp_path)
    _, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(example, "docs/runs.md", "exec"), found)
    for name, (before, after) in found["error"].items():
        assert abs(after) < abs(before), name
    assert any((tmp_path / "deployment").iterdir())
    with RunLedger(tmp_path / "runs.db", must_exist=True) as ledger:
        kept = ledger.run("8b-16-users")
    assert kept.estimate["speed"]["tpot_ms"]["value"] > 0
    assert kept.figures["tpot_ms"] == pytest.approx(found["measured"][16]["tpot_ms"])


def test_every_sub_command_is_told() -> None:
    assert not [name for name in SUB_COMMANDS if f"runs {name}" not in PAGE]
