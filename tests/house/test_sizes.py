"""Modules, functions and docstrings of the house: limits, exceptions that may only shrink, shares that may only rise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trilemma"
MOST_LINES = 300
MOST_LINES_OF_A_FUNCTION = 80
MOST_PATHS = 25
#: Lines of modules beyond the limit. An entry may fall or go, never rise.
LONG_MODULES: dict[str, int] = {}
#: Lines of functions beyond the limit, by module.
LONG_FUNCTIONS: dict[str, int] = {}
#: Paths through functions (cyclomatic complexity) beyond the limit.
WINDING: dict[str, int] = {}
#: Share of the public functions of the physics whose docstring says each of the three: never lower than it once was.
STATED = {"unit": 0.95, "shape": 0.95, "source": 0.95}
_SAYS = {
    "unit": re.compile(
        r"(?i)\b(bytes?|seconds?|flops?|[gm]ib|bits?|tokens?|watts?|dollars?|shares?|fractions?|factors?|counts?|ranks|layers"
        r"|micro-batches|requests|experts|rounds|prompts|pairs)\b"
    ),
    "shape": re.compile(
        r"\b([Ss]calars?|[Aa]rrays?|broadcast\w*|tables?|numbers?)\b|\((plans|layers|stages|ranks|rows|steps)\b"
    ),
    "source": re.compile(
        r"\b(19|20)\d\d\b|et al\.|\w\.py\b|\.toml\b|[Ss]ource|arXiv|\bsection \d|docs/|datasheet|Megatron-LM|[Dd]efinition"
    ),
}


@cache
def functions() -> tuple[tuple[str, ast.FunctionDef], ...]:
    """("package/module.py:name", function) of every function, methods and nested ones by their own name."""
    return tuple(_functions())


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(SOURCE)}:{node.name}", node  # type: ignore[misc]


def length(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def paths(node: ast.FunctionDef) -> int:
    """One, and one for each branch, loop, handler, condition of a comprehension and further operand of and, or."""
    found = 1
    for one in ast.walk(node):
        if isinstance(one, ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.Assert | ast.match_case):
            found += 1
        elif isinstance(one, ast.comprehension):
            found += 1 + len(one.ifs)
        elif isinstance(one, ast.BoolOp):
            found += len(one.values) - 1
    return found


def beyond(found: dict[str, int], limit: int, allowed: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in found.items() if size > max(limit, allowed.get(name, 0))}


def test_modules_hold_one_idea() -> None:
    found = {
        str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert not beyond(found, MOST_LINES, LONG_MODULES)


def test_functions_are_read_in_one_look() -> None:
    assert not beyond({name: length(node) for name, node in functions()}, MOST_LINES_OF_A_FUNCTION, LONG_FUNCTIONS)


def test_functions_do_not_wind() -> None:
    assert not beyond({name: paths(node) for name, node in functions()}, MOST_PATHS, WINDING)


@cache
def physics() -> dict[str, str]:
    """Docstrings of the public functions of memory/ and timing/ that return numbers: not of lookups and of values built."""
    found = {}
    for room in ("memory", "timing"):
        for path in sorted((SOURCE / room).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _is_numeric(node):
                    found[f"{path.relative_to(SOURCE)}:{node.name}"] = ast.get_docstring(node) or ""
    return found


def _is_numeric(node: ast.FunctionDef) -> bool:
    returned = "" if node.returns is None else ast.unparse(node.returns)
    is_table = returned.startswith(("Mapping[str, Any]", "dict[str, Any]")) or not ast.unparse(node.args)
    return bool(re.search(r"\b(Any|float|Numbers|NDArray)\b", returned)) and not is_table


def share(what: str) -> float:
    texts = physics().values()
    return sum(bool(_SAYS[what].search(text)) for text in texts) / len(texts)


def test_physics_says_units_shapes_and_sources() -> None:
    found = {what: round(share(what), 3) for what in STATED}
    assert all(found[what] >= least for what, least in STATED.items()), found


def test_every_function_of_the_physics_says_what_it_is() -> None:
    assert [name for name, text in physics().items() if not text] == []
