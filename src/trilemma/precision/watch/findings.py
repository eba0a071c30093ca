"""What a watch reports: one sentence that names the module, the tensor and the way out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trilemma.columns import column
from trilemma.precision.signals import TensorSignals

Kind = Literal["overflow", "underflow", "dead_update", "not_finite", "parameter_not_finite", "gradient_not_finite"]

#: Operators that make infinities or NaN of finite numbers, and a way to write them that is the same function wherever the
#: first one was finite.
REWRITES = {
    "log": "clamp the argument above zero, torch.log(x.clamp_min(torch.finfo(x.dtype).tiny)), or torch.log1p(y) where x is 1 + y",
    "log2": "clamp the argument above zero before the logarithm",
    "log10": "clamp the argument above zero before the logarithm",
    "log1p": "keep the argument above -1: torch.log1p(x.clamp_min(-1 + eps))",
    "exp": "subtract the largest exponent first (torch.logsumexp, torch.softmax) or clamp it below log of the largest number",
    "expm1": "clamp the argument below log of the largest number",
    "softmax": "compute it in FP32: torch.softmax(x.float(), -1).to(x.dtype); a row of -inf alone has no softmax",
    "div": "keep the divisor away from zero: x / y.clamp_min(eps), or add eps under the root that makes it",
    "reciprocal": "keep the argument away from zero: 1 / x.clamp_min(eps)",
    "rsqrt": "add eps inside: torch.rsqrt(x + eps)",
    "sqrt": "keep the argument at zero or above: torch.sqrt(x.clamp_min(0))",
    "pow": "compute it in FP32, or keep the base away from zero where the exponent is negative",
    "bmm": "scale an operand before the product, (q / d ** 0.5) @ k.mT, or compute it in FP32",
    "mm": "scale an operand before the product, or keep this layer in 16 bits of BF16 rather than FP16",
    "addmm": "scale an operand before the product, or keep this layer in 16 bits of BF16 rather than FP16",
    "baddbmm": "scale an operand before the product: alpha=1 / d ** 0.5",
    "mul": "compute it in FP32, or scale the larger operand before",
    "sum": "accumulate in FP32: x.sum(dtype=torch.float32)",
    "cumsum": "accumulate in FP32: x.cumsum(-1, dtype=torch.float32)",
    "_to_copy": "the number does not fit the narrower type: scale it, or keep this tensor wider",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """What a watch has seen so far, as a document."""

    schema: Literal["trilemma/watch@1"] = "trilemma/watch@1"
    recipe: str
    passes: int
    steps: int
    findings: tuple[WatchFinding, ...] = field(metadata=column(keep="empty"))


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchFinding:
    """One alarm. ``module`` is the path in the model, ``tensor`` its input x, weight w or output gradient g.

    ``value`` is what was seen, ``bound`` what raises the alarm (both in percent, except for numbers that are not finite).
    """

    kind: Kind
    module: str
    tensor: str
    step: int
    value: float = field(metadata=column(finite=True))
    bound: float = field(metadata=column(finite=True))
    says: str
    remedy: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.says}; {self.remedy}"


def overflow(module: str, role: str, signals: TensorSignals, recipe: str, bound: float, step: int) -> WatchFinding:
    return WatchFinding(
        kind="overflow", module=module, tensor=role, step=step, value=signals.overflows_percent, bound=bound,
        says=f"{signals.overflows_percent:.2g} % of {_ROLES[role]} of {module} overflow under {recipe}"
        f" (largest {signals.amax:.3g})",
        remedy="scale this tensor by its own largest magnitude (current scaling or blocks), or keep the layer in BF16",
    )  # fmt: skip


def underflow(module: str, role: str, signals: TensorSignals, recipe: str, bound: float, step: int) -> WatchFinding:
    return WatchFinding(
        kind="underflow", module=module, tensor=role, step=step, value=signals.underflows_percent, bound=bound,
        says=f"{signals.underflows_percent:.0f} % of {_ROLES[role]} of {module} vanish under {recipe}"
        f" (largest {signals.amax:.3g})",
        remedy="scale the loss or the gradients (current or delayed scaling, loss scaling), or keep the layer in BF16",
    )  # fmt: skip


def dead_update(parameter: str, dtype: object, percent: float, bound: float, step: int) -> WatchFinding:
    module, _, tensor = parameter.rpartition(".")
    return WatchFinding(
        kind="dead_update", module=module, tensor=tensor, step=step, value=percent, bound=bound,
        says=f"{percent:.0f} % of {parameter} ({dtype}) did not move in a step though their gradients are not zero",
        remedy="keep FP32 master weights, round updates stochastically, or raise the learning rate: the update is below half"
        " a step",
    )  # fmt: skip


_ROLES = {"x": "the inputs", "w": "the weights", "g": "the output gradients"}


def rewrite(operator: str) -> str:
    """How to write ``operator`` (the name of an ATen operator) so that finite numbers stay finite."""
    name = (
        operator.removeprefix("aten::")
        .split(".")[0]
        .strip("_")
        .replace("safe_softmax", "softmax")
        .replace("log_softmax", "softmax")
    )
    return (
        REWRITES.get(name)
        or REWRITES.get(f"_{name}")
        or "compute this operator in FP32 and look at the range of its inputs"
    )
