"""``with trilemma.watch_numerics(model):`` the lab's signals on any PyTorch model, while it trains as it did before.

Nothing of the model or its arithmetic is changed: casts are tried beside it on a sample of the rows. Steps are counted by
hooks that every optimizer calls, so plain loops, the Trainer of Transformers and Lightning need no line more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trilemma.errors import InputError, shorten
from trilemma.precision.lab.alarms import Thresholds
from trilemma.precision.lab.numerics import Numerics
from trilemma.precision.lab.recipes import Recipe, recipe_named
from trilemma.precision.signals import TensorSignals, frozen_update_percent
from trilemma.precision.watch.findings import Finding, rewrite
from trilemma.precision.watch.first_bad import first_bad_operator, is_bad, tensors_in

#: Names by which recipes are known outside the lab.
_NAMES = {"fp8-delayed": "delayed", "fp8-current": "current", "fp8-naive": "naive", "fp8": "delayed"}
#: Rows of a tensor on which a cast is tried, elements of a weight whose update is followed.
_ROWS, _ELEMENTS = 128, 4096
_KEPT_STEPS = 1000
#: Passes before a judged one whose magnitudes delayed scaling learns, so that its scales are as old as in a real run.
_LEARNING_PASSES = 2


def watch_numerics(model: torch.nn.Module, recipe: str = "fp8-delayed", *, every: int = 10) -> Watch:
    """A `Watch` of ``model`` for a ``with`` block: what training it under ``recipe`` would lose, every ``every``-th pass.

    ``recipe`` is one of the training lab's (`trilemma precision train-lab --list`) or fp8-delayed, fp8-current, fp8-naive,
    mxfp8, fp16, bf16. Raises `InputError` for a model without linear layers.
    """
    return Watch(model, recipe_named(_NAMES.get(recipe, recipe)), every=every)


class Watch:
    """Findings of one training run, oldest first; of each kind the first one of every module and tensor.

    ``history`` holds the signals of the last sampled passes: pass → (module, role) → `TensorSignals`.
    """

    def __init__(self, model: torch.nn.Module, recipe: Recipe, *, every: int = 10) -> None:
        if not 1 <= every <= 10**6:
            raise InputError(f"every {every} is out of range; give a whole number of at least 1")
        self.model = model
        self.recipe = recipe
        self.every = max(every, 2)
        self.findings: list[Finding] = []
        self.history: dict[int, dict[tuple[str, str], TensorSignals]] = {}
        self.passes = 0
        self.steps = 0
        self._layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
        }
        if not self._layers:
            raise InputError(f"{shorten(type(model).__name__)} has no linear layer to watch")
        self._numerics = Numerics(recipe, seed=0)
        self._thresholds = Thresholds.shipped()
        self._removers: list[Callable[[], None]] = []
        self._inputs: tuple[Sequence[Any], Mapping[str, Any]] | None = None
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._frozen_before: set[str] = set()
        self._found: set[tuple[str, str, str]] = set()
        self._ours = {id(parameter) for parameter in model.parameters()}
        self._broken = False

    def __enter__(self) -> Watch:
        model = self.model
        handles = [
            model.register_forward_pre_hook(self._before_pass, with_kwargs=True),
            model.register_forward_hook(self._after_pass),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            *(layer.register_forward_hook(self._layer_hook(name)) for name, layer in self._layers.items()),
        ]
        self._removers = [handle.remove for handle in handles]
        return self

    def __exit__(self, *_: object) -> None:
        for remove in self._removers:
            remove()
        self._removers, self._inputs, self._before = [], None, {}

    def report(self) -> str:
        """Every finding on a line of its own, or one that says there are none."""
        if not self.findings:
            return f"no alarm in {self.passes:,} passes and {self.steps:,} steps under {self.recipe.name}"
        return "\n".join(str(finding) for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "trilemma/watch@1",
            "recipe": self.recipe.name,
            "passes": self.passes,
            "steps": self.steps,
            "findings": [finding.to_json() for finding in self.findings],
        }

    # -- passes ---------------------------------------------------------------------------------------------------------

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

    def _before_pass(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled() or not module.training:
            return
        self.passes += 1
        self._inputs = (args, kwargs)
        self._numerics.watch(self._judging)

    def _after_pass(self, _module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._inputs is None:
            return
        inputs, self._inputs = self._inputs, None
        if not self._broken and any(is_bad(made) for made in tensors_in(output)):
            self._broken = True
            self._locate(*inputs)

    def _layer_hook(self, name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        def hook(layer: torch.nn.Module, args: Any, output: Any) -> None:
            if self._inputs is None or not (self._judging or self._learning) or not args:
                return
            with torch.no_grad():
                self._try(name, "x", args[0])
                if isinstance(layer.weight, torch.Tensor):
                    self._try(name, "w", layer.weight)
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda gradient: self._try(name, "g", gradient))

        return hook

    def _try(self, name: str, role: str, values: torch.Tensor) -> None:
        """Cast a sample of ``values`` beside the model and judge what is kept of it."""
        if not self.recipe.low_precision and self.recipe.forward == "bf16":
            return
        with torch.no_grad():
            rows = values.detach().reshape(-1, values.shape[-1])
            sample = rows[:: max(1, rows.shape[0] // _ROWS)].float()
            if sample.numel() == 0 or is_bad(sample):
                return
            sample = sample * self.recipe.loss_scale if role == "g" and self.recipe.loss_scale != 1.0 else sample
            if not self._judging:
                self._numerics.learn(name, role, sample)
                return
            self._numerics.keep(name, role, sample)
        signals = self._numerics.tensors.get((name, role)) if self._judging else None
        if signals is not None:
            self.history.setdefault(self.passes, {})[name, role] = signals
            while len(self.history) > _KEPT_STEPS:
                del self.history[next(iter(self.history))]
            self._judge(name, role, signals)

    def _judge(self, name: str, role: str, signals: TensorSignals) -> None:
        limits = self._thresholds
        if (
            signals.overflows_percent > limits.overflows_percent_above
            and signals.sqnr_db < limits.overflowing_sqnr_db_below
        ):
            self._add(
                "overflow", name, role, signals.overflows_percent, limits.overflows_percent_above,
                f"{signals.overflows_percent:.2g} % of {_words(role)} of {name} overflow under {self.recipe.name}"
                f" (largest {signals.amax:.3g})",
                "scale this tensor by its own largest magnitude (current scaling or blocks), or keep the layer in BF16",
            )  # fmt: skip
        if role == "g" and signals.underflows_percent > limits.gradient_underflows_percent_above and signals.amax > 0:
            self._add(
                "underflow", name, role, signals.underflows_percent, limits.gradient_underflows_percent_above,
                f"{signals.underflows_percent:.0f} % of {_words(role)} of {name} vanish under {self.recipe.name}"
                f" (largest {signals.amax:.3g})",
                "scale the loss or the gradients (current or delayed scaling, loss scaling), or keep the layer in BF16",
            )  # fmt: skip

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._owns(optimizer):
            return
        gradients = {name: parameter for name, parameter in self.model.named_parameters() if parameter.grad is not None}
        if not self._broken and gradients and not _all_finite([one.grad for one in gradients.values()]):
            self._broken = True
            self._blame_gradient(gradients)
        self._before = {}
        if self.steps % self.every == 0:
            with torch.no_grad():
                for name, parameter in gradients.items():
                    if parameter.ndim >= 2 and parameter.grad is not None:
                        self._before[name] = (_few(parameter).clone(), _few(parameter.grad).clone())

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._owns(optimizer):
            return
        self.steps += 1
        if not self._before:
            return
        parameters = dict(self.model.named_parameters())
        frozen = set()
        for name, (old, asked) in self._before.items():
            percent = frozen_update_percent([old], [_few(parameters[name])], asked=[asked])
            if percent > self._thresholds.frozen_update_percent_above:
                frozen.add(name)
                # Twice in a row: a warm-up from a learning rate of zero stands still for one step and rightly so.
                if name in self._frozen_before:
                    self._dead_update(name, parameters[name], percent)
        self._frozen_before, self._before = frozen, {}

    def _dead_update(self, name: str, parameter: torch.Tensor, percent: float) -> None:
        module, _, tensor = name.rpartition(".")
        self._add(
            "dead_update", module, tensor, percent, self._thresholds.frozen_update_percent_above,
            f"{percent:.0f} % of {name} ({parameter.dtype}) did not move in a step though their gradients are not zero",
            "keep FP32 master weights, round updates stochastically, or raise the learning rate: the update is below half a step",
        )  # fmt: skip

    def _owns(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(parameter) in self._ours for group in optimizer.param_groups for parameter in group["params"])

    # -- numbers that are not finite --------------------------------------------------------------------------------------

    def _locate(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Name what broke the pass: a parameter that is not finite, or the first operator that made it so."""
        for name, parameter in self.model.named_parameters():
            if is_bad(parameter):
                module, _, tensor = name.rpartition(".")
                self._add(
                    "parameter_not_finite", module, tensor, math.nan, math.nan,
                    f"the parameter {name} is not finite: an earlier step broke it",
                    "skip steps whose gradients are not finite, clip gradients, or lower the learning rate",
                )  # fmt: skip
                return
        bad = first_bad_operator(self.model, args, kwargs)
        if bad is None:
            self._add(
                "not_finite", "", "x", math.nan, math.nan, "the output is not finite, and was when the pass ran again",
                "look at what is random in the pass (dropout, sampling) or at inputs that were not finite",
            )  # fmt: skip
            return
        self._add(
            "not_finite", bad.module, "x", math.nan, math.nan,
            f"the first number that is not finite comes from {bad.operator} in {bad.module or 'the model itself'}"
            f" (inputs {bad.least:.3g} to {bad.most:.3g})",
            rewrite(bad.operator),
        )  # fmt: skip

    def _blame_gradient(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """The parameter nearest to the loss whose gradient is not finite: backward reached it first."""
        bad = [name for name, parameter in gradients.items() if parameter.grad is not None and is_bad(parameter.grad)]
        if not bad:
            return
        module, _, tensor = bad[-1].rpartition(".")
        self._add(
            "gradient_not_finite", module, tensor, math.nan, math.nan,
            f"the gradient of {bad[-1]} is not finite, with those of {len(bad) - 1} other parameters",
            "lower the loss scale, or keep roots and divisions of what follows this module away from zero",
        )  # fmt: skip

    def _add(self, kind: Any, module: str, tensor: str, value: float, bound: float, says: str, remedy: str) -> None:
        if (kind, module, tensor) in self._found:
            return
        self._found.add((kind, module, tensor))
        self.findings.append(
            Finding(
                kind=kind, module=module, tensor=tensor, step=self.steps, value=value, bound=bound, says=says, remedy=remedy
            )
        )  # fmt: skip

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)


def _words(role: str) -> str:
    return {"x": "the inputs", "w": "the weights", "g": "the output gradients"}[role]


def _few(tensor: torch.Tensor) -> torch.Tensor:
    """Up to `_ELEMENTS` elements, evenly over the tensor."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)]


def _all_finite(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether all tensors are finite, in one transfer: the largest norm is finite when every norm is."""
    norms = torch._foreach_norm([one for one in tensors if one is not None], math.inf)
    return bool(torch.isfinite(torch.stack([norm.to(norms[0].device).float() for norm in norms])).all())
