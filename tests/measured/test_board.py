"""The board: what a figure stands on, whether its engine moved on, errors by class, other tools, a page that runs nothing."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.measured.board import (
    FILED,
    LOGGED,
    REPRODUCED,
    TYPED,
    Board,
    BoardFigure,
    age_of,
    board,
    facts_moved,
    lines,
)
from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.validation import summarise

DATA = Path(__file__).parents[1] / "data"
ON = datetime.date(2026, 11, 30)


def judged(row: str, predicted: float, measured: float, *, config: str = "", **cells: str) -> Judgement:
    figure = FigureComparison(
        metric="tpot_ms", predicted=predicted, measured=measured, low=0.9 * predicted, high=1.1 * predicted
    )
    return Judgement(row_id=row, cells=cells, comparisons=(figure,), config=config)


def of(*judgements: Judgement, peers: Path | None = None) -> Board:
    return board({"t": summarise("serving-speed", judgements)}, on=ON, peers=peers)


def test_what_a_figure_stands_on() -> None:
    said = of(
        judged("a", 10, 10, source_ref="someone's talk"),
        judged("b", 10, 10, source_ref="owner/name@067f987d:docs/summary.md"),
        judged("c", 10, 10, source_ref="owner/name@067f987d:results/logs/start.log"),
        judged("d", 10, 10.0, config="q", origin="one"),
        judged("e", 10, 10.9, config="q", origin="two"),
        judged("f", 10, 12.5, config="q", origin="three"),
        judged("g", 10, 10.0, config="q2", origin="one"),
        judged("h", 10, 10.0, config="q2", origin="one"),
    )
    trust = {one.row_id: one.trust for one in said.figures}
    assert trust == {
        "a": TYPED, "b": FILED, "c": LOGGED, "d": REPRODUCED, "e": REPRODUCED, "f": TYPED, "g": TYPED, "h": TYPED,
    }  # fmt: skip


def test_versions_whose_facts_changed_are_stale() -> None:
    """vLLM profiles CUDA graphs since 0.21 and takes 0.92 of a card since 0.20: 0.19 is judged by other facts than 0.33."""
    assert facts_moved("vllm", "0.33.0") == 0
    assert (facts_moved("vllm", "0.19.0") or 0) >= 1
    assert facts_moved("vllm", "") is None
    assert facts_moved("megatron-lm", "core_r0.9") is None
    said = of(
        judged("a", 10, 10, engine="vllm", engine_version="0.19.0"),
        judged("b", 10, 10, engine="vllm", engine_version="0.33.0"),
        judged("c", 10, 10, engine="vllm"),
    )
    (line,) = lines(said.figures, lambda one: one.engine)
    assert (line.errors.n, line.stale, line.dated) == (3, 1, 2)


@pytest.mark.parametrize(
    ("date", "age"),
    [
        ("2026-10-01", "under 3 months"),
        ("2026-04-22", "6 to 12 months"),
        ("2024-01", "over 2 years"),
        ("", "not dated"),
    ],
)
def test_ages(date: str, age: str) -> None:
    (one,) = of(judged("a", 10, 10, date=date)).figures
    assert age_of(one, ON) == age


def test_errors_by_class_are_those_of_validate() -> None:
    said = of(judged("a", 11, 10, gpu="x"), judged("b", 13, 10, gpu="x"), judged("c", 10, 20, gpu="y"))
    found: dict[str, BoardFigure] = {one.row_id: one for one in said.figures}
    assert found["c"].error == pytest.approx(-0.5)
    by_card = {line.value: line.errors for line in lines(said.figures, lambda one: one.card)}
    assert by_card["x"].median_ape == pytest.approx(0.2)
    assert by_card["x"].coverage90 == pytest.approx(0.5)
    assert by_card["y"].bias == pytest.approx(-0.5)


def test_other_tools_on_the_same_rows(tmp_path: Path) -> None:
    peers = tmp_path / "peers.csv"
    peers.write_text("tool,id,metric,predicted\nother,a,tpot_ms,12\nother,nowhere,tpot_ms,1\n")
    said = of(judged("a", 11, 10), judged("b", 20, 10), peers=peers)
    (line,) = said.peers
    assert (line.tool, line.n) == ("other", 1)
    assert line.ours.median_ape == pytest.approx(0.1)
    assert line.theirs.median_ape == pytest.approx(0.2)


def test_the_page_of_several_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = [str(DATA / "serving_memory_sample.csv"), str(DATA / "training_sample.csv")]
    target = tmp_path / "board.html"
    assert main(["validate", *tables, "--board", str(target)]) == 0
    assert "of 2 tables" in capsys.readouterr().out
    page = target.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "<script" not in page
    for title in ("by who measured", "by engine", "by card", "by age", "by trust", "farthest off"):
        assert page.count(title) == 2
    assert re.search(r"vllm 0\.19</td>", page)


def test_names_of_tables_stand_as_text(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    text = (DATA / "serving_memory_sample.csv").read_text(encoding="utf-8").splitlines()
    head = text[0].split(",")
    cells = text[1].split(",")
    cells[head.index("id")] = "\u202e<img src=x onerror=alert(1)>"
    cells[head.index("source_ref")] = "<script>alert(1)</script>"
    table.write_text(f"{text[0]}\n{','.join(cells)}\n", encoding="utf-8")
    target = tmp_path / "board.html"
    assert main(["validate", str(table), "--board", str(target)]) == 0
    page = target.read_text(encoding="utf-8")
    assert "&lt;img src=x" in page
    assert "<img" not in page
    assert "<script" not in page
    assert "\u202e" not in page  # turns the words after it round


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["A", "B"], "--board FILE.html"),
        (["A", "--peers", "x.csv"], "--board FILE.html"),
        (["A", "--board", "b.html", "--json"], "--json"),
        (["A", "--board", "/nowhere/b.html"], "no folder"),
        (["A", "--board", "b.html", "--peers", "A"], "tool,id,metric,predicted"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {name: str(DATA / "training_sample.csv") for name in ("A", "B")}
    assert main(["validate", *(named.get(word, word) for word in words)]) == 2
    assert said in capsys.readouterr().err
