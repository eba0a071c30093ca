"""Programs beside the package (studies, benchmarks, scripts) name what exists: a renaming reaches them too."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for folder in ("studies", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that a program takes from this package."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "trilemma"
        for alias in node.names
    ]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_program_imports_exists(path: Path) -> None:
    for module, name in imported(path):
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            if not (error.name or "").startswith("trilemma"):
                pytest.skip(f"needs {error.name}")
            raise
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
