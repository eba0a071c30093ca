"""What a Python script passes to the calls that load, adapt and train a model: read, never run."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text

_MOST_BYTES = 2**20
_MOST_NODES = 200_000


def call_arguments(path: Path, calls: Collection[str]) -> dict[str, Any]:
    """Keyword arguments of ``calls`` that are plain values, or names of plain values at the top of the script; the first call
    that states one counts, ``None`` states nothing. Raises `InputError` where the file is no Python."""
    try:
        tree = ast.parse(read_text(path)[:_MOST_BYTES])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{shorten(str(path))} is not readable Python; give the script that trains") from error
    plain: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for count, node in enumerate(ast.walk(tree)):
        if count > _MOST_NODES:
            raise InputError(f"{shorten(str(path))} is longer than any training script; give the script that trains")
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _literal(node.value, {})
            if value is not None:
                plain.setdefault(node.targets[0].id, value)
        if isinstance(node, ast.Call) and _name(node.func) in calls:
            for keyword in node.keywords:
                value = _literal(keyword.value, plain) if keyword.arg else None
                if keyword.arg and value is not None:
                    found.setdefault(keyword.arg, value)
            if node.args and _name(node.func) == "from_pretrained" and isinstance(_literal(node.args[0], plain), str):
                found.setdefault("model_name", _literal(node.args[0], plain))
    return found


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _literal(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A constant, a list of constants, a name of one, or the dtype behind ``torch.``; None for what must be computed."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (str, int, float, bool)) else None
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and _name(node.value) == "torch":
        return node.attr
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_literal(one, names) for one in node.elts]
        return [one for one in values if one is not None] if len(values) < 1000 else None
    return None
