"""A Python script as the rules see it: its tree, what its names mean by its imports, who encloses whom. Nothing is imported."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from trilemma.diagnosis.sources import Unreadable

#: Larger scripts, and deeper trees, are not read.
MOST_BYTES = 4 << 20
_MOST_NODES = 400_000
_MOST_DEPTH = 200

Loop = ast.For | ast.While | ast.AsyncFor


@dataclass(slots=True)
class Script:
    """``names``: local name → dotted name, by imports; ``assigned``: name → every expression that it is bound to."""

    file: str
    tree: ast.Module
    lines: list[str]
    names: dict[str, str] = field(default_factory=dict)
    assigned: dict[str, list[ast.expr]] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    nodes: list[ast.AST] = field(default_factory=list)

    def dotted(self, node: ast.AST) -> str | None:
        """``te.pytorch.Linear`` as ``transformer_engine.pytorch.pytorch.Linear``; None where it is no chain of names."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([self.names.get(node.id, node.id), *reversed(parts)])

    def imported(self, node: ast.AST) -> str | None:
        """The same, where the first name of the chain comes from an import; None for names of the script itself."""
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        return self.dotted(node) if isinstance(first, ast.Name) and first.id in self.names else None

    def line(self, node: ast.AST) -> int:
        return int(getattr(node, "lineno", 1))

    def text(self, node: ast.AST) -> str:
        at = self.line(node) - 1
        return self.lines[at].strip()[:160] if 0 <= at < len(self.lines) else ""

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in self.nodes if isinstance(node, ast.Call))

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Everything that encloses a node, the nearest first."""
        while (above := self.parents.get(node)) is not None:
            yield above
            node = above

    def loop_of(self, node: ast.AST) -> Loop | None:
        """The innermost loop around a node within its own function."""
        for above in self.up(node):
            if isinstance(above, ast.For | ast.While | ast.AsyncFor):
                return above
            if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                return None
        return None

    def function_of(self, node: ast.AST) -> ast.AST:
        """The function around a node, else the module."""
        for above in self.up(node):
            if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return above
        return self.tree

    def uses(self, library: str) -> bool:
        return any(name == library or name.startswith(f"{library}.") for name in self.names.values())


def method_of(call: ast.AST | None) -> str:
    """``step`` of ``optimizer.step()``; "" for calls of plain names."""
    return call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else ""


def receiver_of(call: ast.Call) -> str:
    """``optimizer`` of ``optimizer.step()``; "" for what is no plain name."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def read_script(file: str, text: str) -> Script:
    """Raises `Unreadable` for what is no Python of this version, or is too large."""
    if len(text) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a foreign script's escapes
            tree = ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(f"no Python: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"no Python: {type(error).__name__}") from None
    script = Script(file=file, tree=tree, lines=text.splitlines())
    _walk(script)
    for node in script.nodes:
        _bind(script, node)
    return script


def parses(text: str) -> bool:
    """Whether a piece of text is Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _walk(script: Script) -> None:
    pending: list[tuple[ast.AST, int]] = [(script.tree, 0)]
    while pending:
        node, depth = pending.pop()
        script.nodes.append(node)
        if len(script.nodes) > _MOST_NODES or depth > _MOST_DEPTH:
            raise Unreadable("it is too large or too deeply nested to be read")
        for child in ast.iter_child_nodes(node):
            script.parents[child] = node
            pending.append((child, depth + 1))
    script.nodes.sort(key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))


def _bind(script: Script, node: ast.AST) -> None:
    match node:
        case ast.Import():
            for one in node.names:
                if one.asname:
                    script.names[one.asname] = one.name
                else:
                    script.names[one.name.partition(".")[0]] = one.name.partition(".")[0]
        case ast.ImportFrom(module=str(module), level=0):
            for one in node.names:
                script.names[one.asname or one.name] = f"{module}.{one.name}"
        case ast.Assign():
            for target in node.targets:
                for name, value in _targets(target, node.value):
                    script.assigned.setdefault(name, []).append(value)
        case ast.AnnAssign(value=ast.expr() as value):
            for name, bound in _targets(node.target, value):
                script.assigned.setdefault(name, []).append(bound)
        case ast.NamedExpr():
            script.assigned.setdefault(node.target.id, []).append(node.value)
        case _:
            pass


def _targets(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """(name, value) of an assignment; ``self.x`` by its dotted name, tuples element by element where both sides have them."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return [(f"{target.value.id}.{target.attr}", value)]
    if isinstance(target, ast.Tuple | ast.List):
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        values = value.elts if same and isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
        return [pair for one, bound in zip(target.elts, values, strict=True) for pair in _targets(one, bound)]
    return []
