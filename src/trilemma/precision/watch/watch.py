"""``with trilemma.watch_numerics(model):`` the lab's signals on any PyTorch model, while it trains as it did before.

Nothing of the model or its arithmetic is changed: casts are tried beside it on a sample of the rows. Steps are counted by
hooks that every optimizer calls, so plain loops, the Trainer of Transformers and Lightning need no line more. Passes that are
not sampled carry no hook on any layer; they and their gradients are only tested for numbers that are not finite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trilemma.columns import document_of
from trilemma.errors import InputError, shorten
from trilemma.precision.lab.alarms import Thresholds
from trilemma.precision.lab.recipes import LabRecipe, recipe_named
from trilemma.precision.signals import TensorSignals
from trilemma.precision.watch.blame import blame_gradient, blame_pass
from trilemma.precision.watch.casts import CastTrials
from trilemma.precision.watch.eager import run_eagerly
from trilemma.precision.watch.findings import Watched, WatchFinding, dead_update
from trilemma.precision.watch.finite import all_finite, is_bad, tensors_in
from trilemma.precision.watch.updates import FrozenUpdates

#: Names by which recipes are known outside the lab.
_NAMES = {"fp8-delayed": "delayed", "fp8-current": "current", "fp8-naive": "naive", "fp8": "delayed"}
#: Passes before a judged one whose magnitudes delayed scaling learns, so that its scales are as old as in a real run.
_LEARNING_PASSES = 2
#: The method that Lightning calls for a pass, in place of the module itself.
_STEP = "training_step"

_Hook = Callable[[torch.nn.Module, Any, Any], None]


def watch_numerics(model: torch.nn.Module, recipe: str = "fp8-delayed", *, every: int = 10) -> Watch:
    """A `Watch` of ``model`` for a ``with`` block: what training it under ``recipe`` would lose, every ``every``-th pass.

    ``recipe`` is one of the training lab's (`trilemma precision train-lab --list`) or fp8-delayed, fp8-current, fp8-naive,
    mxfp8, fp16, bf16. A pass is a call of ``model`` in training mode, or of its ``training_step`` where it has one
    (Lightning). Raises `InputError` for a model without linear layers.
    """
    return Watch(model, recipe_named(_NAMES.get(recipe, recipe)), every=every)


class Watch:
    """Findings of one training run, oldest first; of each kind the first one of every module and tensor.

    ``history`` holds the signals of the last sampled passes: pass → (module, role) → `TensorSignals`.
    """

    def __init__(self, model: torch.nn.Module, recipe: LabRecipe, *, every: int = 10) -> None:
        if not 1 <= every <= 10**6:
            raise InputError(f"every {every} is out of range; give a whole number of at least 1")
        self.model = model
        self.recipe = recipe
        self.every = every
        self.findings: list[WatchFinding] = []
        self.passes = 0
        self.steps = 0
        self._layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
        }
        if not self._layers:
            raise InputError(f"{shorten(type(model).__name__)} has no linear layer to watch")
        limits = Thresholds.shipped()
        self._trials = CastTrials(recipe, limits)
        self._updates = FrozenUpdates(percent_above=limits.frozen_update_percent_above)
        self._removers: list[Callable[[], None]] = []
        self._layer_removers: list[Callable[[], None]] = []
        #: What runs now: the model's own call or its training step, with its inputs.
        self._running: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] | None = None
        self._found: set[tuple[str, str, str]] = set()
        self._parameters = dict(model.named_parameters())
        self._ours = {id(parameter) for parameter in self._parameters.values()}
        self._broken = False
        self._judged = 0

    @property
    def history(self) -> dict[int, dict[tuple[str, str], TensorSignals]]:
        return self._trials.history

    def __enter__(self) -> Watch:
        handles = [
            self.model.register_forward_pre_hook(self._before_call, with_kwargs=True),
            self.model.register_forward_hook(self._after_call),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._removers = [handle.remove for handle in handles]
        self._wrap_training_step()
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()
        for remove in self._removers:
            remove()
        self._removers, self._running = [], None
        self._updates.forget()

    def report(self) -> str:
        """Every finding on a line of its own, or one that says there are none."""
        lines = [str(finding) for finding in self.findings]
        if self.steps and not self.passes:
            lines.append(
                f"nothing was watched: {self.steps:,} steps, but {type(self.model).__name__} itself was never called in"
                " training mode; watch the module that the loop calls"
            )
        elif self._judged and not self.history and self._casts:
            lines.append(
                f"no layer was seen in {self._judged:,} sampled passes; give watch_numerics the compiled module where the"
                " model is compiled"
            )
        return (
            "\n".join(lines) or f"no alarm in {self.passes:,} passes and {self.steps:,} steps under {self.recipe.name}"
        )

    def to_json(self) -> dict[str, Any]:
        """The document ``trilemma/watch@1``."""
        seen = Watched(recipe=self.recipe.name, passes=self.passes, steps=self.steps, findings=tuple(self.findings))
        return document_of(seen, exact=True)

    def __iter__(self) -> Iterator[WatchFinding]:
        return iter(self.findings)

    # -- passes ---------------------------------------------------------------------------------------------------------

    @property
    def _casts(self) -> bool:
        """Whether the recipe casts anything to less than BF16 has; else only updates and what is not finite are watched."""
        return self.recipe.low_precision or self.recipe.forward != "bf16"

    @property
    def _judging(self) -> bool:
        first = self.recipe.history if self.recipe.scaling == "delayed" else 1
        return self.passes >= first and self.passes % self.every == 0

    @property
    def _learning(self) -> bool:
        """Passes that only enter the histories of delayed scaling: all while they are short, then those before a judged one."""
        if self.recipe.scaling != "delayed" or self._judging:
            return False
        return self.passes <= self.recipe.history or -self.passes % self.every <= _LEARNING_PASSES

    def _before_call(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        # Within a training step the step is the pass.
        if self._running is None or self._running[0] is self.model:
            self._begin(module, args, kwargs)

    def _after_call(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._running is not None and self._running[0] is module:
            self._end(output)

    def _wrap_training_step(self) -> None:
        """Lightning calls ``training_step``, from which parts of the module are called, but seldom the module itself."""
        step = getattr(self.model, _STEP, None)
        if not callable(step):
            return

        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._begin(step, args, kwargs)
            try:
                output = step(*args, **kwargs)
                self._end(output)
            finally:
                self._running = None
            return output

        own = _STEP in vars(self.model)
        setattr(self.model, _STEP, watched)
        self._removers.append(
            functools.partial(setattr, self.model, _STEP, step)
            if own
            else functools.partial(delattr, self.model, _STEP)
        )

    def _begin(self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._disarm()
        self._running = None
        if not torch.is_grad_enabled() or not self.model.training:
            return
        self.passes += 1
        self._running = (call, args, kwargs)
        self._judged += self._judging
        self._trials.numerics.watch(self._judging)
        if (self._judging or self._learning) and self._casts:
            self._arm()

    def _end(self, output: Any) -> None:
        if self._running is None:
            return
        self._disarm()
        (call, args, kwargs), self._running = self._running, None
        if not self._broken and any(is_bad(made) for made in tensors_in(output)):
            self._broken = True
            self._add(blame_pass(self.model, call, args, kwargs, step=self.steps))

    def _arm(self) -> None:
        self._layer_removers = [
            layer.register_forward_hook(self._layer_hook(name)).remove for name, layer in self._layers.items()
        ]
        self._layer_removers.append(run_eagerly())

    def _disarm(self) -> None:
        for remove in self._layer_removers:
            remove()
        self._layer_removers = []

    def _layer_hook(self, name: str) -> _Hook:
        def hook(layer: torch.nn.Module, args: Any, output: Any) -> None:
            if args and isinstance(args[0], torch.Tensor):
                self._try(name, "x", args[0])
            if isinstance(layer.weight, torch.Tensor):
                self._try(name, "w", layer.weight)
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda gradient: self._try(name, "g", gradient))

        return hook

    def _try(self, name: str, role: str, values: torch.Tensor) -> None:
        judged = self.passes if self._judging else None
        for finding in self._trials.tried(name, role, values, judged_pass=judged, step=self.steps):
            self._add(finding)

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._owns(optimizer):
            return
        if self.steps % self.every == 0:
            self._parameters = dict(self.model.named_parameters())
            self._updates.remember(self._parameters)
        if not _computes_gradients(args, kwargs):
            self._look_at_gradients(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._owns(optimizer):
            return
        if _computes_gradients(args, kwargs):
            self._look_at_gradients(optimizer)
        for name, percent in self._updates.frozen(self._parameters).items():
            self._add(
                dead_update(name, self._parameters[name].dtype, percent, self._updates.percent_above, self.steps + 1)
            )
        self.steps += 1

    def _look_at_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        # A gradient scaler leaves gradients that overflowed to optimizers that skip such steps themselves.
        if self._broken or getattr(optimizer, "grad_scale", None) is not None:
            return
        if all_finite([one.grad for one in self._parameters.values() if one.grad is not None]):
            return
        self._broken = True
        found = blame_gradient(self._parameters, step=self.steps)
        if found is not None:
            self._add(found)

    def _owns(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(parameter) in self._ours for group in optimizer.param_groups for parameter in group["params"])

    def _add(self, finding: WatchFinding) -> None:
        key = (finding.kind, finding.module, finding.tensor)
        if key not in self._found:
            self._found.add(key)
            self.findings.append(finding)


def _computes_gradients(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an optimizer's step is given a closure, which runs pass and backward within it (Lightning, L-BFGS)."""
    return any(callable(one) for one in (*args[1:], *kwargs.values()))
