"""Losses that depend on no parameter: made of constants, cut from their history, or sums that are the same for every input."""

from __future__ import annotations

import ast

from trilemma.linting.script import Script, method_of

#: Calls that make a tensor without a history.
_LEAVES = (
    "torch.tensor", "torch.zeros", "torch.ones", "torch.rand", "torch.randn", "torch.full", "torch.empty",
    "torch.FloatTensor", "torch.scalar_tensor",
)  # fmt: skip


def why_constant(script: Script, target: ast.expr, call: ast.Call) -> str:
    """Why what ``call`` goes back from depends on no parameter, as words after "a loss that"; "" where nothing says so."""
    if isinstance(target, ast.Call) and method_of(target) in ("detach", "item"):
        return f"{method_of(target)}() has cut from its history"
    if isinstance(target, ast.Call):
        return "" if _is_leaf_of_its_own(target) else _why_constant_value(script, target)
    if not isinstance(target, ast.Name):
        return ""
    near = [
        value for value in script.assigned.get(target.id, []) if script.function_of(value) is script.function_of(call)
    ]
    grown = any(
        isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == target.id
        for node in script.nodes
    )
    if not near or grown:
        return ""
    reasons = [_why_constant_value(script, value) for value in near]
    return reasons[-1] if all(reasons) else ""


def _is_leaf_of_its_own(value: ast.Call) -> bool:
    """``torch.empty(1, device="cuda", requires_grad=True).backward()`` trains nothing on purpose, it wakes the engine."""
    return any(
        one.arg == "requires_grad" and isinstance(one.value, ast.Constant) and one.value.value is True
        for one in value.keywords
    )


def _why_constant_value(script: Script, value: ast.expr) -> str:
    name = script.imported(value.func) if isinstance(value, ast.Call) else None
    if name in _LEAVES:
        return "is made of constants"
    if isinstance(value, ast.Call) and method_of(value) in ("detach", "item"):
        return f"{method_of(value)}() has cut from its history"
    if isinstance(value, ast.Call) and method_of(value) in ("sum", "mean") and isinstance(value.func, ast.Attribute):
        return _why_sum_constant(script, value.func.value)
    return ""


def _why_sum_constant(script: Script, inner: ast.expr, depth: int = 0) -> str:
    """Sums that do not depend on their input: of a softmax, of a layer norm without what follows it."""
    if depth > 4:
        return ""
    if isinstance(inner, ast.Name):
        values = script.assigned.get(inner.id, [])
        reasons = [_why_sum_constant(script, value, depth + 1) for value in values]
        return reasons[-1] if reasons and all(reasons) else ""
    if not isinstance(inner, ast.Call):
        return ""
    name = (script.imported(inner.func) or "").rpartition(".")[2]
    if name == "softmax" or (method_of(inner) == "softmax" and not name):
        return "is the sum of a softmax, which is the number of its rows"
    if name == "layer_norm":
        return "is the sum of a layer norm, which is zero"
    ends = _ends_in(script, inner.func)
    if ends in ("LayerNorm", "Softmax"):
        told = (
            "a layer norm, which is zero at its initial weights"
            if ends == "LayerNorm"
            else "a softmax, which is constant"
        )
        return f"is the sum of {told}"
    return ""


def _ends_in(script: Script, called: ast.expr) -> str:
    """The kind of the last layer of what is called: a module of this script, a Sequential, or a layer itself."""
    made: list[ast.expr] = script.assigned.get(ast.unparse(called), [])
    for value in made:
        while (
            isinstance(value, ast.Call)
            and method_of(value) in ("to", "cuda", "half", "bfloat16", "float", "train")
            and isinstance(value.func, ast.Attribute)
        ):
            value = value.func.value
        if not isinstance(value, ast.Call):
            continue
        kind = (script.dotted(value.func) or "").rpartition(".")[2]
        if kind == "Sequential" and value.args and isinstance(last := value.args[-1], ast.Call):
            return (script.dotted(last.func) or "").rpartition(".")[2]
        if kind in ("LayerNorm", "Softmax"):
            return kind
        own = next((node for node in script.nodes if isinstance(node, ast.ClassDef) and node.name == kind), None)
        if own is not None:
            return _class_ends_in(script, own)
    return ""


def _class_ends_in(script: Script, own: ast.ClassDef) -> str:
    forward = next((one for one in own.body if isinstance(one, ast.FunctionDef) and one.name == "forward"), None)
    returned = [node.value for node in ast.walk(forward) if isinstance(node, ast.Return)] if forward else []
    if len(returned) != 1 or not isinstance(returned[0], ast.Call | ast.Name):
        return ""
    result: ast.expr | None = returned[0]
    if isinstance(result, ast.Name) and forward is not None:
        bound = [value for value in script.assigned.get(result.id, []) if forward in script.up(value)]
        result = bound[-1] if bound else None
    if not isinstance(result, ast.Call):
        return ""
    made = [value for value in script.assigned.get(ast.unparse(result.func), []) if own in script.up(value)]
    kinds = {(script.dotted(value.func) or "").rpartition(".")[2] for value in made if isinstance(value, ast.Call)}
    return kinds.pop() if len(kinds) == 1 else ""
