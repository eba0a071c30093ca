"""A public class name means one thing in the whole package."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trilemma"


def public_classes() -> dict[str, list[str]]:
    """Name of a public class → the modules that define it."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    return found


def test_class_names_are_unique() -> None:
    classes = public_classes()
    assert len(classes) > 400
    assert {name: homes for name, homes in classes.items() if len(homes) > 1} == {}
