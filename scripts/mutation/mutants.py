"""Small slips in source code: every place where one may be made, and the code with one of them made.

What is changed: comparisons (``<`` and ``<=``, ``==`` and ``!=``, ``in``, ``is``), arithmetic, ``and`` and ``or``, conditions,
numbers (whole ones by one, others doubled), truth values, ``min`` and ``max``, ``floor`` and ``ceil``, statements left out.
Words, annotations, docstrings and what only type checkers read stay as they are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_TWINS = {
    one: other
    for pair in (("min", "max"), ("minimum", "maximum"), ("floor", "ceil"), ("argmin", "argmax"), ("any", "all"))
    for one, other in (pair, pair[::-1])
}
#: Fields that hold types and not values.
_TYPES = {"annotation", "returns", "decorator_list", "bases", "type_params"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One slip: ``place`` is the node's place in the walk over the tree of ``path``, ``change`` what is done to it."""

    path: str
    line: int
    first_line: int
    place: int
    change: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.place}:{self.change}"


def module_of(path: str) -> str:
    """The module that lies in ``path``."""
    return path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def mutants(path: Path, root: Path) -> Iterator[Mutant]:
    """Every slip that can be made in one file."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for place, (node, statement) in enumerate(_walk(ast.parse(source))):
        for change in _changes(node):
            line = getattr(node, "lineno", statement)
            text = f"{lines[line - 1].strip()}   [{change}: {ast.unparse(node)[:60]!r}]"
            yield Mutant(
                path=str(path.relative_to(root)), line=line, first_line=statement, place=place, change=change, text=text
            )


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The tree of ``source`` with the slip made."""
    tree = ast.parse(source)
    node = next(one for place, (one, _) in enumerate(_walk(tree)) if place == mutant.place)
    _make(node, mutant.change)
    return ast.fix_missing_locations(tree)


def _walk(node: ast.AST, statement: int = 1) -> Iterator[tuple[ast.AST, int]]:
    """Nodes that hold values, each with the first line of its statement."""
    if isinstance(node, ast.stmt):
        statement = node.lineno
    yield node, statement
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    for name, value in ast.iter_fields(node):
        if name in _TYPES:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, statement)


def _changes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(ops=ops):
            yield from (f"compare {at}" for at, one in enumerate(ops) if type(one) in _COMPARED)
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC and not _is_text(node):
            yield "arithmetic"
            if isinstance(node, ast.AugAssign):
                yield "left out"
        case ast.BoolOp():
            yield "and or"
        case ast.UnaryOp(op=ast.USub()):
            yield "sign"
        case ast.Constant(value=bool()):
            yield "truth"
        case ast.Constant(value=int() | float()):
            yield "number"
        case ast.If() | ast.IfExp() | ast.While():
            yield "condition"
        case ast.comprehension(ifs=[_, *_]):
            yield "filter"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _TWINS:
            yield "twin"
        case ast.Expr(value=ast.Call()):
            yield "left out"
        case ast.Call(keywords=[_, *_] as keywords):
            yield from (f"keyword {at}" for at, one in enumerate(keywords) if one.arg and _is_plain(one.value))


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(isinstance(one, ast.JoinedStr) or isinstance(getattr(one, "value", None), str) for one in parts)


def _is_plain(value: ast.expr) -> bool:
    """Keywords that only hand a name on: what is left out falls back on a default, or is missed at once."""
    return isinstance(value, ast.Name | ast.Attribute)


def _make(node: ast.AST, change: str) -> None:
    kind, _, at = change.partition(" ")
    match node:
        case ast.Compare(ops=ops) if kind == "compare":
            ops[int(at)] = _COMPARED[type(ops[int(at)])]()
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if kind == "arithmetic":
            node.op = _ARITHMETIC[type(op)]()
        case ast.AugAssign(target=target):
            _replace(node, ast.Expr(value=_loaded(target)))
        case ast.BoolOp(op=op):
            node.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op = ast.UAdd()
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.Constant(value=float() as value):
            node.value = 2 * value if value else 1.0
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
        case ast.comprehension(ifs=[first, *rest]):
            node.ifs = [ast.UnaryOp(op=ast.Not(), operand=first), *rest]
        case ast.Call(func=ast.Name() as func) if kind == "twin":
            func.id = _TWINS[func.id]
        case ast.Call(func=ast.Attribute() as func) if kind == "twin":
            func.attr = _TWINS[func.attr]
        case ast.Call(keywords=keywords) if kind == "keyword":
            del keywords[int(at)]
        case ast.Expr():
            node.value = ast.Constant(value=None)
        case _:
            raise ValueError(f"{change!r} is no change of {ast.dump(node)[:80]}")


def _replace(node: ast.AST, other: ast.AST) -> None:
    node.__class__ = other.__class__  # type: ignore[assignment]
    node.__dict__.update(other.__dict__)


def _loaded(target: ast.expr) -> ast.expr:
    found = copy.deepcopy(target)
    found.ctx = ast.Load()  # type: ignore[attr-defined]
    return found
