"""Findings on the screen, line by line, and a run of the ledger as it was given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.diagnosis.findings import Evidence, Finding
from trilemma.report.findings import finding_words

FOUND = Finding(
    id="x", role="cause", severity="error", claim="a card fell off the bus", confidence="likely",
    evidence=tuple(Evidence(file=f"log{at}", line=at or None, value=f"Xid {at}") for at in range(6)),
    expected="8 cards", observed="7 cards", fix="replace it", predicted_effect="the job runs",
)  # fmt: skip


def test_a_finding_is_told_with_its_first_evidence_and_all_of_it_where_asked() -> None:
    short, full = (finding_words(FOUND, explain=explain, width=100).splitlines() for explain in (False, True))
    assert short[0] == "ERROR (cause, likely): a card fell off the bus."
    assert [line.split()[0] for line in short[1:]] == [
        "expected", "observed", "evidence", "log1:1:", "log2:2:", "log3:3:", "and", "fix", "effect",
    ]  # fmt: skip
    assert [line.split()[-1] for line in short[3:7]] == ["0", "1", "2", "3"]
    assert [line.split()[-2:] for line in (short[1], short[2], short[8], short[9])] == [
        ["8", "cards"], ["7", "cards"], ["replace", "it"], ["job", "runs"],
    ]  # fmt: skip
    assert short[7].strip() == "and 2 more, with --explain"
    assert len(full) == len(short) + 1
    assert not any("more, with" in line for line in full)


def test_what_no_fault_was_found_in_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at in range(2):
        (tmp_path / f"{at}.log").write_text("step: 1 loss: 2.5 tps: 100\nstep: 2 loss: 2.4 tps: 100\n")
    assert main(["diagnose", str(tmp_path / "0.log")]) == 0
    assert capsys.readouterr().out.startswith("No fault found in 1 file: ")
    assert main(["diagnose", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("No fault found in 2 files: ")


def test_a_recorded_run_keeps_what_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ["--ledger", str(tmp_path / "runs.db")]
    words = "record one --figure step_s=0.31 --set lr=0.001 --model m --gpu h100 --gpus 8 --tag a --seconds 90 --crashed hang"
    assert main(["runs", *words.split(), *ledger]) == 0
    capsys.readouterr()
    assert main(["runs", "show", "one", "--json", *ledger]) == 0
    (kept,) = [one for one in _runs(json.loads(capsys.readouterr().out)) if one["name"] == "one"]
    assert (kept["model"], kept["gpu"], kept["gpus"], kept["status"], kept["why"]) == (
        "m",
        "h100",
        8,
        "crashed",
        "hang",
    )
    assert kept["figures"] == {"step_s": 0.31}
    assert kept["tags"] == ["a"]
    assert kept["ended_s"] - kept["started_s"] == pytest.approx(90.0, abs=1e-3)


def _runs(found: object) -> list[dict[str, object]]:
    """Every mapping with a name in a document."""
    if isinstance(found, dict):
        return [found] * ("name" in found) + [one for value in found.values() for one in _runs(value)]
    return [one for value in found for one in _runs(value)] if isinstance(found, list) else []
