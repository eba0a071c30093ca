"""Loops that train nothing, or not what they seem to: what stands between a loss, its gradients and an"
" optimizer's step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trilemma.diagnosis.findings import Finding
from trilemma.linting.constant_losses import why_constant
from trilemma.linting.said import at
from trilemma.linting.script import Loop, Script, method_of, receiver_of

_OPTIMIZERS = ("torch.optim.", "transformer_engine.pytorch.optimizers.", "bitsandbytes.optim.", "apex.optimizers.")
_NOT_OPTIMIZERS = ("lr_scheduler", "swa_utils")


def findings(script: Script) -> Iterator[Finding]:
    if not script.uses("torch"):
        return
    backwards = [call for call in script.calls() if method_of(call) == "backward"]
    yield from _rebuilt(script, backwards)
    yield from _cleared(script)
    yield from _without_history(script, backwards)
    yield from _under_no_grad(script, backwards)
    yield from _in_eval(script, backwards)
    yield from _all_frozen(script)
    yield from _unlinked(script, backwards)


def is_optimizer(script: Script, node: ast.expr) -> bool:
    """Whether an expression makes an optimizer of PyTorch or of a library beside it."""
    name = script.imported(node.func) if isinstance(node, ast.Call) else None
    return bool(name and name.startswith(_OPTIMIZERS) and not any(part in name for part in _NOT_OPTIMIZERS))


def _optimizers(script: Script) -> dict[str, list[ast.expr]]:
    """Name → the expressions that make it an optimizer."""
    made = {name: [one for one in values if is_optimizer(script, one)] for name, values in script.assigned.items()}
    return {name: values for name, values in made.items() if values}


def _rebuilt(script: Script, backwards: list[ast.Call]) -> Iterator[Finding]:
    """An optimizer made anew in the loop that steps it: its moments and its step count are lost each time."""
    stepped = {id(script.loop_of(call)) for call in backwards if script.loop_of(call) is not None}
    for call in script.calls():
        loop = script.loop_of(call) if is_optimizer(script, call) else None
        if loop is not None and id(loop) in stepped and not _is_rare(script, call, loop):
            yield at(
                script,
                call,
                "training.optimizer-rebuilt",
                "the optimizer is made anew in each step: moments and step count start from zero every time",
                "make it once, before the loop",
                effect="AdamW of one step is a sign update: no momentum, no adaptation",
            )


def _is_rare(script: Script, node: ast.AST, loop: Loop) -> bool:
    """Whether a condition inside the loop stands around a node."""
    for above in script.up(node):
        if above is loop:
            return False
        if isinstance(above, ast.If | ast.Try):
            return True
    return False


def _cleared(script: Script) -> Iterator[Finding]:
    """Gradients cleared between ``backward`` and ``step`` of the same block."""
    for node in script.nodes:
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            if isinstance(block, list):
                yield from _cleared_in(script, block)


def _cleared_in(script: Script, block: list[ast.stmt]) -> Iterator[Finding]:
    ready, cleared = False, None
    for statement in block:
        call = statement.value if isinstance(statement, ast.Expr) else None
        method = method_of(call) if isinstance(call, ast.Call) else ""
        if method == "backward":
            ready, cleared = True, None
        elif method == "zero_grad" and ready:
            cleared = statement
        elif method == "step" and isinstance(call, ast.Call):
            if cleared is not None and receiver_of(call) in (_cleared_by(cleared), *_any_of(script, call)):
                yield at(
                    script,
                    cleared,
                    "training.gradients-cleared",
                    "gradients are cleared after backward() and before step(): the optimizer sees none",
                    "call zero_grad() after step(), or before backward()",
                )
            ready, cleared = False, None


def _cleared_by(statement: ast.stmt) -> str:
    return (
        receiver_of(statement.value)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        else ""
    )


def _any_of(script: Script, call: ast.Call) -> tuple[str, ...]:
    """An optimizer's own name, where ``model.zero_grad()`` cleared what it steps; schedulers' steps are none."""
    name = receiver_of(call)
    return (name,) if name in _optimizers(script) or "optim" in name.lower() else ()


def _without_history(script: Script, backwards: list[ast.Call]) -> Iterator[Finding]:
    """Backward of a number that no parameter had a part in."""
    for call in backwards:
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        if target is None:
            continue
        why = why_constant(script, target, call)
        if why:
            yield at(
                script,
                call,
                "training.constant-loss",
                f"backward() of a loss that {why}: nothing is learnt from it",
                "compute the loss from the model's outputs and the labels",
            )


def _under_no_grad(script: Script, backwards: list[ast.Call]) -> Iterator[Finding]:
    for call in backwards:
        for above in script.up(call):
            if isinstance(above, ast.With) and any(_is_no_grad(script, item.context_expr) for item in above.items):
                yield at(
                    script,
                    call,
                    "training.no-grad",
                    "backward() stands under no_grad(): nothing was recorded to go back through",
                    "compute the loss outside of no_grad()",
                )
                break
            if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
                break


def _is_no_grad(script: Script, node: ast.expr) -> bool:
    name = script.imported(node.func) if isinstance(node, ast.Call) else None
    return name in ("torch.no_grad", "torch.inference_mode") and not (isinstance(node, ast.Call) and node.args)


def _in_eval(script: Script, backwards: list[ast.Call]) -> Iterator[Finding]:
    """Training of a model that was set to ``eval()`` and never back."""
    trained = {_owner_of_parameters(value) for values in _optimizers(script).values() for value in values} - {""}
    for call in backwards:
        loop = script.loop_of(call)
        if loop is None:
            continue
        modes = [
            one
            for one in script.calls()
            if method_of(one) in ("eval", "train")
            and not one.args[1:]
            and script.line(one) <= (loop.end_lineno or script.line(loop))
            and receiver_of(one) in trained
            and script.function_of(one) in (script.function_of(call), script.tree)
        ]
        if modes and all(method_of(one) == "eval" for one in modes) and script.line(modes[-1]) < script.line(call):
            yield at(
                script,
                modes[-1],
                "training.eval-mode",
                f"{receiver_of(modes[-1])} is trained in eval mode: no dropout, and batch norm keeps its old"
                " statistics",
                f"{receiver_of(modes[-1])}.train() before the loop",
                severity="warning",
            )
            return


def _owner_of_parameters(value: ast.expr) -> str:
    """``model`` of ``AdamW(model.parameters(), …)``."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and method_of(node) in ("parameters", "named_parameters"):
            return receiver_of(node)
    return ""


def _all_frozen(script: Script) -> Iterator[Finding]:
    """An optimizer of parameters that were all frozen and not thawed."""
    thawed = any(
        (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and node.value.value is True
            and any(isinstance(one, ast.Attribute) and one.attr == "requires_grad" for one in node.targets)
        )
        or (isinstance(node, ast.Call) and method_of(node) == "requires_grad_" and not _says_false(node))
        or (isinstance(node, ast.Call) and (script.imported(node.func) or "").startswith("peft."))
        for node in script.nodes
    )
    if thawed:
        return
    for name in {_owner_of_parameters(value) for values in _optimizers(script).values() for value in values} - {""}:
        replaced = any(bound.startswith(f"{name}.") for bound in script.assigned)
        freeze = next((node for node in script.nodes if _freezes(node, name)), None)
        if freeze is not None and not replaced:
            yield at(
                script,
                freeze,
                "training.all-frozen",
                f"every parameter of {name} is frozen, and the optimizer is of those alone",
                "leave what is to be trained with requires_grad = True, and give the optimizer those",
            )


def _says_false(call: ast.Call) -> bool:
    return any(
        isinstance(one, ast.Constant) and one.value is False
        for one in [*call.args, *(one.value for one in call.keywords)]
    )


def _freezes(node: ast.AST, name: str) -> bool:
    """``name.requires_grad_(False)``, or a loop over ``name.parameters()`` that does so with each and asks"
    " nothing."""
    if isinstance(node, ast.Call):
        return method_of(node) == "requires_grad_" and receiver_of(node) == name and _says_false(node)
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call) or len(node.body) != 1:
        return False
    over = method_of(node.iter) == "parameters" and receiver_of(node.iter) == name
    body = node.body[0]
    return over and (
        (
            isinstance(body, ast.Assign)
            and isinstance(body.value, ast.Constant)
            and body.value.value is False
            and any(isinstance(one, ast.Attribute) and one.attr == "requires_grad" for one in body.targets)
        )
        or (
            isinstance(body, ast.Expr)
            and isinstance(body.value, ast.Call)
            and method_of(body.value) == "requires_grad_"
            and _says_false(body.value)
        )
    )


def _computes_gradients(script: Script, methods: set[str]) -> bool:
    """Whether something else does: a function whose name says backward (pipelines have one), or gradients set by hand."""
    named = "backward" in " ".join(methods) or any(
        isinstance(node, ast.Name) and "backward" in node.id.lower() for node in script.nodes
    )
    return named or any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store)
        for node in script.nodes
    )


def _unlinked(script: Script, backwards: list[ast.Call]) -> Iterator[Finding]:
    """Gradients that no optimizer takes, and steps without gradients."""
    optimizers = _optimizers(script)
    methods = {method_of(call) for call in script.calls()}
    steps = [call for call in script.calls() if method_of(call) == "step" and receiver_of(call) in optimizers]
    passed_on = any(
        isinstance(node, ast.Name)
        and node.id in optimizers
        and not isinstance(script.parents.get(node), ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        for node in script.nodes
    )
    grads = any(
        (script.imported(call.func) or "").endswith(("autograd.grad", "autograd.backward")) for call in script.calls()
    )
    if optimizers and backwards and not passed_on and "step" not in methods:
        yield at(
            script,
            backwards[0],
            "training.no-step",
            "gradients are computed, and no optimizer ever steps",
            "optimizer.step() after backward()",
        )
    if steps and not backwards and not grads and not passed_on and not _computes_gradients(script, methods):
        yield at(
            script,
            steps[0],
            "training.no-backward",
            "the optimizer steps, and nothing ever computes gradients",
            "loss.backward() before step()",
        )
