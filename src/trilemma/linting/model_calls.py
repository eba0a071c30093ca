"""How a script handles models of libraries: labels that are missing, precisions that are no recipe, caches"
" emptied in loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trilemma.diagnosis.findings import Finding
from trilemma.linting.said import at
from trilemma.linting.script import Script, method_of
from trilemma.linting.training_loops import is_optimizer

_FLOAT8 = ("torch.float8_e4m3fn", "torch.float8_e5m2", "torch.float8_e4m3fnuz", "torch.float8_e5m2fnuz")
_AUTOCAST = ("torch.amp.autocast", "torch.autocast", "torch.cuda.amp.autocast")
_AUTOCAST_TAKES = ("torch.float16", "torch.bfloat16", "torch.half", "torch.float32", "torch.float", "torch.float64")


def findings(script: Script) -> Iterator[Finding]:
    models = _pretrained(script)
    yield from _no_labels(script, models)
    yield from _eight_bit_weights(script)
    yield from _autocast_types(script)
    yield from _emptied_cache(script)
    yield from _gradient_of_a_generator(script)
    yield from _function_as_context(script)
    yield from _foreign_modules(script, models)
    yield from _engine_on_host(script)
    yield from _weights_dropped(script)


def _pretrained(script: Script) -> dict[str, str]:
    """Name → class of the models that ``from_pretrained`` of Transformers makes."""
    found = {}
    for name, values in script.assigned.items():
        for value in values:
            called = script.imported(value.func) if isinstance(value, ast.Call) else None
            if called and called.startswith("transformers.") and called.endswith(".from_pretrained"):
                found[name] = called.split(".")[1]
    return {name: kind for name, kind in found.items() if "ForCausalLM" in kind or "For" in kind}


def _no_labels(script: Script, models: dict[str, str]) -> Iterator[Finding]:
    """``model(input_ids=…)`` without labels whose ``.loss`` is taken: it is None."""
    for name, values in script.assigned.items():
        for value in values:
            if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name) or value.func.id not in models:
                continue
            told = {one.arg for one in value.keywords}
            stars = any(isinstance(one, ast.Starred) for one in value.args)
            if (
                None in told
                or "labels" in told
                or stars
                or len(value.args) > 1
                or (value.args and not told and not isinstance(value.args[0], ast.Name))
            ):
                continue
            taken = next(
                (
                    node
                    for node in script.nodes
                    if isinstance(node, ast.Attribute)
                    and node.attr == "loss"
                    and isinstance(node.value, ast.Name)
                    and node.value.id == name
                    and script.line(node) >= script.line(value)
                ),
                None,
            )
            if taken is not None:
                yield at(
                    script,
                    taken,
                    "training.no-labels",
                    f"{value.func.id} was called without labels: its loss is None",
                    "pass labels=input_ids (the model shifts them), or compute the loss from the logits",
                )


def _eight_bit_weights(script: Script) -> Iterator[Finding]:
    """Weights loaded as bare FP8 and trained: they have no scale, and most operations are missing."""
    trains = any(
        is_optimizer(script, call) or (script.imported(call.func) or "").endswith("Trainer") for call in script.calls()
    )
    for call in script.calls():
        for one in call.keywords:
            if one.arg in ("torch_dtype", "dtype") and script.imported(one.value) in _FLOAT8 and _loads(script, call):
                what = "trained" if trains else "loaded"
                yield at(
                    script,
                    one.value,
                    "recipe.bare-fp8",
                    f"weights are {what} as bare {ast.unparse(one.value)}: without scales, and most operations"
                    " have no such kernel",
                    "load bfloat16 and cast the products: torchao.float8.convert_to_float8_training,"
                    " te.autocast; to serve, an FP8 checkpoint",
                )
        if isinstance(call.func, ast.Attribute) and call.func.attr == "to" and trains:
            for value in [*call.args, *(one.value for one in call.keywords)]:
                if script.imported(value) in _FLOAT8 and "model" in ast.unparse(call.func.value).lower():
                    yield at(
                        script,
                        call,
                        "recipe.bare-fp8",
                        "a model is cast to bare FP8 and trained: without scales",
                        "cast the products: torchao.float8.convert_to_float8_training, or te.autocast",
                    )


def _loads(script: Script, call: ast.Call) -> bool:
    return (script.imported(call.func) or "").endswith("from_pretrained") or (
        script.imported(call.func) or ""
    ).endswith(".pipeline")


def _autocast_types(script: Script) -> Iterator[Finding]:
    for call in script.calls():
        if script.imported(call.func) not in _AUTOCAST:
            continue
        for value in [*call.args, *(one.value for one in call.keywords if one.arg == "dtype")]:
            name = script.imported(value)
            if name and name.startswith("torch.float") and name not in _AUTOCAST_TAKES:
                yield at(
                    script,
                    call,
                    "recipe.autocast-fp8",
                    f"autocast takes float16 and bfloat16: with {name} it warns and turns itself off",
                    "te.autocast(enabled=True, recipe=…) of Transformer Engine, or"
                    " torchao.float8.convert_to_float8_training",
                )


def _emptied_cache(script: Script) -> Iterator[Finding]:
    for call in script.calls():
        loop = script.loop_of(call)
        if (
            script.imported(call.func) not in ("torch.cuda.empty_cache", "torch.cuda.memory.empty_cache")
            or loop is None
        ):
            continue
        if _after_a_deletion(script, call, loop):
            continue
        if any(isinstance(node, ast.Call) and _is_a_step(node) for node in ast.walk(loop)):
            yield at(
                script,
                call,
                "speed.empty-cache",
                "empty_cache() in the loop of steps: each call waits for the GPU and gives back"
                " blocks that the next step asks for again; live tensors and an engine's cache pool it"
                " cannot free",
                "drop it; against fragmentation PYTORCH_ALLOC_CONF=expandable_segments:True",
                severity="warning",
            )


def _after_a_deletion(script: Script, call: ast.Call, loop: ast.AST) -> bool:
    """Whether something was deleted just before, in the block of the call or in one around it: a pipeline of samples."""
    below: ast.AST = call
    for above in script.up(call):
        blocks = [block for name in ("body", "orelse") if isinstance(block := getattr(above, name, None), list)]
        before = [one for block in blocks if below in block for one in block[: block.index(below)]]
        if any(isinstance(one, ast.Delete) for one in before):
            return True
        if above is loop:
            return False
        below = above
    return False


def _is_a_step(call: ast.Call) -> bool:
    """A step of training or of decoding: backward, step, generate, or the model itself."""
    called = call.func.id if isinstance(call.func, ast.Name) else ""
    return method_of(call) in ("backward", "generate", "step", "decode_step") or called in ("model", "llm", "net")


def _gradient_of_a_generator(script: Script) -> Iterator[Finding]:
    for node in script.nodes:
        if not isinstance(node, ast.Attribute) or method_of(node.value) not in ("parameters", "named_parameters"):
            continue
        if node.attr in ("grad", "data", "norm", "requires_grad"):
            yield at(
                script,
                node,
                "api.never",
                f"parameters() is a generator and has no .{node.attr}",
                "torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]), or go through them one by one",
            )


def _function_as_context(script: Script) -> Iterator[Finding]:
    """An autograd Function entered with ``with``."""
    own = {
        node.name
        for node in script.nodes
        if isinstance(node, ast.ClassDef)
        and any(
            script.imported(base) in ("torch.autograd.Function", "torch.autograd.function.Function")
            for base in node.bases
        )
        and not any(isinstance(one, ast.FunctionDef) and one.name == "__enter__" for one in node.body)
    }
    for node in script.nodes:
        for item in node.items if isinstance(node, ast.With) else ():
            called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
            name = called.value if isinstance(called, ast.Attribute) and called.attr == "apply" else called
            if isinstance(name, ast.Name) and name.id in own:
                yield at(
                    script,
                    item.context_expr,
                    "api.never",
                    f"{name.id} is an autograd Function, which is no context manager",
                    f"{name.id}.apply(x) on a tensor",
                )


def _foreign_modules(script: Script, models: dict[str, str]) -> Iterator[Finding]:
    """Modules looked for in a model of Transformers that has none of them."""
    if not any("ForCausalLM" in kind for kind in models.values()):
        return
    for call in script.calls():
        asks = isinstance(call.func, ast.Name) and call.func.id == "isinstance" and len(call.args) == 2
        if asks and script.imported(call.args[1]) == "torch.nn.MultiheadAttention":
            yield at(
                script,
                call,
                "recipe.no-such-module",
                "causal language models of Transformers hold no nn.MultiheadAttention: nothing is matched",
                "match by name: q_proj, k_proj, v_proj, o_proj (module_filter_fn of torchao gets the name)",
                severity="warning",
                confidence="supported",
            )


def _engine_on_host(script: Script) -> Iterator[Finding]:
    """Layers of Transformer Engine in a script that never names a GPU."""
    layers = [
        call
        for call in script.calls()
        if (script.imported(call.func) or "").startswith("transformer_engine.pytorch.")
        and (script.imported(call.func) or "").rpartition(".")[2][:1].isupper()
    ]
    runs = any(method_of(call) == "backward" for call in script.calls())
    if not layers or not runs or any("cuda" in line or "device" in line.lower() for line in script.lines):
        return
    yield at(
        script,
        layers[0],
        "recipe.needs-gpu",
        "Transformer Engine computes on GPUs alone, and nothing in this script is put on one",
        'device="cuda" for tensors and .cuda() for modules',
        severity="warning",
    )


def _weights_dropped(script: Script) -> Iterator[Finding]:
    """Layers of a trained model replaced by new ones whose weights are those of chance."""
    for call in script.calls():
        if not (isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3):
            continue
        around = script.function_of(call)
        walks = any(
            isinstance(node, ast.Attribute) and node.attr in ("named_modules", "named_children", "children", "modules")
            for node in ast.walk(around)
        )
        keeps = any(
            isinstance(node, ast.Attribute)
            and node.attr in ("weight", "load_state_dict", "state_dict", "copy_", "from_float", "parameters")
            for node in ast.walk(around)
        )
        new = (
            call.args[2]
            if not isinstance(call.args[2], ast.Name)
            else next(iter(script.assigned.get(call.args[2].id, [])), call.args[2])
        )
        made = script.imported(new.func) if isinstance(new, ast.Call) else None
        if walks and not keeps and made and made.startswith("torch.nn.") and not made.endswith(("Parameter", "Buffer")):
            yield at(
                script,
                call,
                "recipe.weights-dropped",
                f"layers are replaced by new {made.removeprefix('torch.')} whose weights are random: what was"
                " learnt is lost",
                "copy the weights (and stride, padding, groups) into the new layer, or train anew and say so",
                severity="warning",
                confidence="supported",
            )
