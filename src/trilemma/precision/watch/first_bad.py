"""The first operator that makes something that is not finite out of finite numbers, found by running a pass again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trilemma.precision.watch.eager import run_eagerly
from trilemma.precision.watch.finite import is_bad, tensors_in

#: Operators whose result is not yet written, and operators by which masks are made of -inf on purpose.
_UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_strided", "resize_", "set_")
_MASKING = (
    "full",
    "full_like",
    "new_full",
    "fill",
    "masked_fill",
    "where",
    "scalar_tensor",
    "triu",
    "tril",
    "copy",
    "_to_copy",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstBad:
    """``operator`` as ATen names it, the innermost ``module`` that ran it, the range of its floating inputs."""

    operator: str
    module: str
    least: float
    most: float


def first_bad_operator(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, call: Callable[..., Any] | None = None
) -> FirstBad | None:
    """Run ``model`` again on the same inputs, without gradients, and name the first bad operator; None if there is none.

    ``call`` is what to run where the pass is not the model's own call. Random parts (dropout) may differ from the pass that
    went wrong.
    """
    path: list[str] = []
    finder = _Finder(path)
    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(_enter(path, name)).remove)
            stack.callback(module.register_forward_hook(_leave(path), always_call=True).remove)
        stack.callback(run_eagerly())
        stack.enter_context(torch.no_grad())
        stack.enter_context(finder)
        (call or model)(*args, **kwargs)
    return finder.found


class _Finder(TorchDispatchMode):
    """Looks at what every operator makes until one makes something bad."""

    def __init__(self, path: list[str]) -> None:
        super().__init__()
        self.path = path
        self.found: FirstBad | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.found is None:
            self._look(func, args, kwargs or {}, result)
        return result

    def _look(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        if name.rstrip("_") in _UNWRITTEN or name in _UNWRITTEN:
            return
        masking = name.rstrip("_") in _MASKING
        if not any(is_bad(made, minus_infinity_is_fine=masking) for made in tensors_in(result)):
            return
        given = [one for one in tensors_in([*args, *kwargs.values()]) if one.is_floating_point() and one.numel()]
        # An operator in place has overwritten its first input; what it was given then cannot be seen any more.
        inputs = given[1:] if name.endswith("_") else given
        if any(is_bad(one) for one in inputs):
            return
        least = min((float(one.min()) for one in inputs), default=float("nan"))
        most = max((float(one.max()) for one in inputs), default=float("nan"))
        self.found = FirstBad(operator=name, module=self.path[-1] if self.path else "", least=least, most=most)


def _enter(path: list[str], name: str) -> Any:
    def hook(_module: torch.nn.Module, _args: Any) -> None:
        path.append(name)

    return hook


def _leave(path: list[str]) -> Any:
    def hook(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if path:
            path.pop()

    return hook
