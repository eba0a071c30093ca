"""The comparison's document has a place, filled, for every table of the study that makes it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module("compare_planners")


def test_every_place_is_filled_and_made_by_the_study() -> None:
    places = dict(PLACE.findall((ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")))
    made = (ROOT / "studies" / "compare_planners.py").read_text(encoding="utf-8")
    assert len(places) == 14
    for name, table in places.items():
        assert f'"{name}"' in made
        assert len(table.strip().splitlines()) > 3, name


def test_tables_are_put_between_their_own_marks(study: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table: one -->\n<!-- end -->\nb\n<!-- table: two -->\n| old |\n<!-- end -->\n")
    study.put({"two": "| new |"}, page)
    study.put({"one": "| 1 |"}, page)
    assert page.read_text() == (
        "a\n<!-- table: one -->\n| 1 |\n<!-- end -->\nb\n<!-- table: two -->\n| new |\n<!-- end -->\n"
    )
    with pytest.raises(SystemExit, match="three"):
        study.put({"three": ""}, page)


def test_plans_of_one_engine_fill_the_cards(study: ModuleType) -> None:
    planners = importlib.import_module("planners")
    row = {
        "num_total_gpus": "4", "tp": "4", "dp": "1", "pp": "1", "moe_ep": "1", "concurrency": "96.0", "ttft": "815.2",
        "tpot": "37.6", "tokens/s/gpu": "624.3",
    }  # fmt: skip
    answer = planners.Answer(seconds=1.0, cpu_seconds=1.0, document={"plans": [row]})
    assert study.their_plans(answer, 8) == [["2 × TP4", "192", "815.2", "37.6", "624.3"]]


def test_without_the_other_tool_only_ours_is_asked(
    study: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    study.main(["--only", "accuracy", "llama-bf16"])
    shown = capsys.readouterr()
    assert "not installed" in shown.err
    assert shown.out.count("trilemma") == 3
    assert "aiconfigurator" not in shown.out
