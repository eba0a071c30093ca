"""The documentation builds as a site without a warning, and its links lead somewhere; the notebook runs from top to bottom."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import trilemma
from trilemma.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "scripts" / "site"


def part(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BUILDER))
    return importlib.import_module(name)


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    """With every page of docs/, every command and every public name on it."""
    pytest.importorskip("zensical")
    done = subprocess.run(
        [sys.executable, str(BUILDER / "build.py"), str(tmp_path / "site")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= built
    assert {"index", "questions", "zh", "notebook"} <= built
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in commands for name in COMMANDS)
    assert "--concurrency N" in commands
    names = (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    assert 'id="trilemma.ask.questions.fit"' in names
    assert "One plan in full" in names  # of its docstring


def test_every_page_is_in_the_navigation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that mkdocs.yml does not name stand under More."""
    import yaml

    def pages(entries: object) -> set[str]:
        if isinstance(entries, str):
            return {entries}
        parts = entries.values() if isinstance(entries, dict) else entries
        return set().union(*map(pages, parts))  # type: ignore[call-overload]

    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("      - Lint: lint.md\n", "")
    added = part("build", monkeypatch).unlisted(settings)
    assert "      - lint.md\n" in added
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= pages(yaml.safe_load(settings + added)["nav"])


def test_links_that_lead_nowhere_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#there"></a><a href="b.html#gone"></a><a href="c.html"></a><a href="#top"></a>'
        '<script src="https://elsewhere.example/x.js"></script><a href="https://elsewhere.example/"></a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    assert part("links", monkeypatch).faults(tmp_path) == [
        "a.html: b.html#gone (no such anchor)",
        "a.html: c.html (no such page)",
        "a.html: https://elsewhere.example/x.js (loaded from elsewhere)",
    ]


def test_every_public_name_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    page = part("pages", monkeypatch).python_page()
    assert page.count("\n::: ") == len([name for name in trilemma.__all__ if not name.startswith("__")])


def test_options_are_told_with_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    page = part("pages", monkeypatch).commands_page()
    assert "| `--tpot MS` | target: mean time per output token" in page
    assert "### runs gate" in page
    assert "%(default)" not in page


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten cells, kept without outputs; each shows something, answers as pages, the chart as a picture."""
    pytest.importorskip("nbclient")
    book = part("notebook_page", monkeypatch)
    kept = json.loads(book.NOTEBOOK.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in kept["cells"])
    cells = [cell for cell in book.executed().cells if cell.cell_type == "code"]
    assert len(cells) == 10
    assert all(cell.outputs for cell in cells)
    shown = ["".join(kind for output in cell.outputs for kind in output.get("data", {})) for cell in cells]
    assert [at for at, kinds in enumerate(shown, 1) if "text/html" in kinds] == [1, 3, 6, 7, 8, 9, 10]
    assert "image/svg+xml" in shown[4] or "vegalite" in shown[4]
    assert cells[3].outputs[0].text.startswith("vllm serve ")
    assert "DOES NOT FIT" in cells[6].outputs[0].data["text/html"]
    assert "58.11" in cells[7].outputs[0].data["text/html"]  # the log's own figure
