"""Imports go down the floors of docs/architecture.md only, lazy ones and those of type checkers too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from trilemma.engines.traits import every

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trilemma"
#: Entrances: they hand on names of every floor and hold nothing.
_ENTRANCES = {"__init__", "__main__"}


@cache
def floors() -> dict[str, float]:
    """Package or module of the top → its floor, as the document's table says; "3, below the engines" lies between 2 and 3."""
    found: dict[str, float] = {}
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| (\d|data)(, below [^|]*)? \| ([^|]*) \|", line)
        if row is None:
            continue
        floor = -1.0 if row.group(1) == "data" else float(row.group(1)) - (0.5 if row.group(2) else 0.0)
        for name in re.findall(r"`([a-z_]+)(?:/|\.py)`", row.group(3)):
            assert found.get(name, floor) == floor, f"{name} stands on two floors of docs/architecture.md"
            found[name] = floor
    return found


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """(importing module, imported module) by dotted names below the package, wherever the statement stands."""
    return tuple(_imports())


def _imports() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                targets = [node.module or ""]
                if targets == ["trilemma"]:
                    targets = [f"trilemma.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                continue
            for target in targets:
                if target.startswith("trilemma."):
                    yield name, target.removeprefix("trilemma.")


def top(name: str) -> str:
    return name.partition(".")[0]


def test_every_package_has_a_floor() -> None:
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - _ENTRANCES == set(floors())


def test_imports_are_found() -> None:
    assert len(imports()) > 2000
    assert ("cli.main", "errors") in imports()


def test_no_import_goes_up() -> None:
    table = floors()
    up = [
        (source, target) for source, target in imports()
        if top(source) in table and top(target) in table and table[top(target)] > table[top(source)]
    ]  # fmt: skip
    assert not up


def test_no_two_packages_of_a_floor_import_each_other() -> None:
    arrows = {(top(source), top(target)) for source, target in imports() if top(source) != top(target)}
    mutual = {tuple(sorted(arrow)) for arrow in arrows if arrow[::-1] in arrows and not set(arrow) & _ENTRANCES}
    assert not mutual


def test_no_serving_engine_knows_another_but_the_one_that_it_is_built_on() -> None:
    built = {(one.package, every()[one.built_on].package) for one in every().values() if one.built_on is not None}
    packages = {path.parent.name for path in (SOURCE / "engines").glob("*/budget.py")}
    assert len(packages) >= 5
    crossing = [
        (source, target) for source, target in imports()
        if source.startswith("engines.") and target.startswith("engines.")
        and {source.split(".")[1], target.split(".")[1]} <= packages and source.split(".")[1] != target.split(".")[1]
    ]  # fmt: skip
    assert {(source.split(".")[1], target.split(".")[1]) for source, target in crossing} == built


def test_private_names_stay_in_their_module() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trilemma"):
                found += [(path.name, alias.name) for alias in node.names if re.match(r"_[a-zA-Z]", alias.name)]
    assert not found
