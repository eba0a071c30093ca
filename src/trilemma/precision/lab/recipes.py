"""The recipes under trial: which number formats, how they are scaled, what overflow becomes, which modules are spared."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from trilemma.errors import InputError, UnknownName
from trilemma.formats.catalogue import get

#: none: numbers are cast as they are. current: one scale a tensor from its own largest magnitude. delayed: one scale a
#: tensor from the magnitudes of earlier steps. block: FP32 scales of blocks. mx: E8M0 scales of 32 neighbours. nvfp4: E4M3
#: scales of 16 neighbours under one FP32 scale.
Scaling = Literal["none", "current", "delayed", "block", "mx", "nvfp4"]
#: What an E4M3 or E5M2 cast makes of a value beyond its range: the largest number (torch since 2.12, Transformer Engine)
#: or NaN (torch before, ml_dtypes).
Overflow = Literal["saturate", "nan"]
#: Which linear layers run in low precision.
Scope = Literal["all", "attention", "all but head", "all but head and ends"]
Storage = Literal["fp32", "bf16", "fp8_e4m3"]

_DIRECTIONAL = {"block", "mx", "nvfp4"}
#: Settings that mean something under one scaling alone.
_SETTINGS_OF = {
    "delayed": {"history", "history_rule", "margin", "warm_up_steps"},
    "mx": {"power_rule"},
    "nvfp4": {"hadamard"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LabRecipe:
    """How the matrix products of every linear layer are computed and how its weights are kept.

    ``forward``: format of activations and weights; ``backward``: of the gradients that flow back into the two products of
    the backward pass. Products accumulate in FP32. ``history``, ``history_rule``, ``margin`` (powers of two of headroom)
    and ``warm_up_steps`` (first steps in BF16 while amax is collected) belong to delayed scaling; ``power_rule`` to MX.
    ``loss_scale`` multiplies the loss before the backward pass; ``dynamic_loss_scale`` halves it after an overflow, and
    that step is skipped. ``storage`` is what weights are rounded to after each optimizer step (FP32 = master weights),
    ``moments`` what Adam's moments are.
    """

    name: str
    says: str
    forward: str = "bf16"
    backward: str = "bf16"
    scaling: Scaling = "none"
    overflow: Overflow = "saturate"
    scope: Scope = "all"
    history: int = 16
    history_rule: Literal["max", "most_recent"] = "max"
    margin: int = 0
    warm_up_steps: int = 0
    power_rule: Literal["floor", "rceil"] = "rceil"
    hadamard: bool = False
    stochastic_gradients: bool = False
    loss_scale: float = 1.0
    dynamic_loss_scale: bool = False
    storage: Storage = "fp32"
    stochastic_storage: bool = False
    moments: Literal["fp32", "bf16"] = "fp32"

    def __post_init__(self) -> None:
        known = {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"}
        for role, name in (("forward", self.forward), ("backward", self.backward)):
            if name not in known:
                raise InputError(
                    f"recipe {self.name!r} casts {role} to {name!r}; use one of {', '.join(sorted(known))}"
                )
        if self.scaling == "nvfp4" and {self.forward, self.backward} != {"fp4_e2m1"}:
            raise InputError(f"recipe {self.name!r} scales NVFP4 but casts to {self.forward}; use fp4_e2m1")
        if "fp4_e2m1" in {self.forward, self.backward} and self.overflow == "nan":
            raise InputError(f"recipe {self.name!r}: fp4_e2m1 has no NaN for overflow to become; use saturate")
        if self.history < 1 or self.warm_up_steps < 0 or self.loss_scale <= 0:
            raise InputError(
                f"recipe {self.name!r} has history {self.history}, warm-up {self.warm_up_steps} and loss scale"
                f" {self.loss_scale:g}; use 1 or more, 0 or more and above 0"
            )

    @property
    def low_precision(self) -> bool:
        """Whether any product runs on fewer than 16 bits."""
        return min(get(self.forward).bits, get(self.backward).bits) < 16

    @property
    def directional(self) -> bool:
        """Whether scales run along the summed axis, so that each product of the backward pass casts its operands anew."""
        return self.scaling in _DIRECTIONAL

    def differs_from(self, other: LabRecipe) -> dict[str, tuple[Any, Any]]:
        """Settings that ``other`` has otherwise: name → (here, there). Those of a scaling that not both use are left out."""
        ignored = {"name", "says"}
        for scaling, settings in _SETTINGS_OF.items():
            if not self.scaling == other.scaling == scaling:
                ignored |= settings
        return {
            field.name: (getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
            if field.name not in ignored and getattr(self, field.name) != getattr(other, field.name)
        }


def _e4m3(name: str, says: str, **settings: Any) -> LabRecipe:
    return LabRecipe(**{"name": name, "says": says, "forward": "fp8_e4m3", "backward": "fp8_e4m3"} | settings)


def _hybrid(name: str, says: str, **settings: Any) -> LabRecipe:
    return _e4m3(name, says, **{"backward": "fp8_e5m2"} | settings)


_NAIVE = _e4m3("naive", "E4M3 casts of weights, activations and gradients, no scales")
_DELAYED = _hybrid("delayed", "one scale a tensor from 16 earlier steps (largest)", scaling="delayed")
_DELAYED_NAN = replace(_DELAYED, name="delayed-nan", says="delayed, casts that overflow to NaN", overflow="nan")
_CURRENT = _hybrid("current", "one scale a tensor from its own largest magnitude", scaling="current")

_ALL = (
    LabRecipe(name="bf16", says="BF16 products, FP32 master weights: the reference"),
    LabRecipe(
        name="fp16",
        says="FP16 products, dynamic loss scaling from 65536",
        forward="fp16",
        backward="fp16",
        loss_scale=65536.0,
        dynamic_loss_scale=True,
    ),
    LabRecipe(name="fp16-unscaled", says="FP16 products, no loss scaling", forward="fp16", backward="fp16"),
    _NAIVE,
    replace(_NAIVE, name="naive-nan", says="naive, casts that overflow to NaN", overflow="nan"),
    _hybrid("naive-hybrid", "E4M3 forward, E5M2 backward, no scales"),
    _e4m3("naive-forward", "E4M3 forward without scales, BF16 gradients", backward="bf16"),
    replace(_NAIVE, name="naive-loss-scale", says="naive with the loss scaled by 4096", loss_scale=4096.0),
    replace(_NAIVE, name="naive-attention", says="naive in attention only", scope="attention"),
    replace(_NAIVE, name="naive-head-kept", says="naive, LM head kept in BF16", scope="all but head"),
    replace(
        _NAIVE,
        name="naive-ends-kept",
        says="naive, LM head, first and last layer kept in BF16",
        scope="all but head and ends",
    ),
    _CURRENT,
    _e4m3("current-e4m3", "current scaling, E4M3 gradients too", scaling="current"),
    replace(_CURRENT, name="current-attention", says="current scaling in attention only", scope="attention"),
    _DELAYED,
    replace(_DELAYED, name="delayed-recent", says="delayed, scale of the last step", history_rule="most_recent"),
    replace(_DELAYED, name="delayed-warm", says="delayed, first 20 steps in BF16", warm_up_steps=20),
    _DELAYED_NAN,
    replace(
        _DELAYED_NAN,
        name="delayed-recent-nan",
        says="delayed, scale of the last step, overflow to NaN",
        history_rule="most_recent",
    ),
    replace(_DELAYED_NAN, name="delayed-margin-nan", says="delayed, margin 2, overflow to NaN", margin=2),
    replace(
        _DELAYED_NAN, name="delayed-warm-nan", says="delayed, BF16 for 20 steps, overflow to NaN", warm_up_steps=20
    ),
    replace(
        _DELAYED_NAN,
        name="delayed-margin-warm-nan",
        says="delayed, margin 2 and BF16 for 20 steps, overflow to NaN",
        margin=2,
        warm_up_steps=20,
    ),
    _e4m3("block", "E4M3, FP32 scales of 1×128 (weights 128×128)", scaling="block"),
    _e4m3("mxfp8-floor", "MXFP8, scales rounded down (OCP)", scaling="mx", power_rule="floor"),
    _e4m3("mxfp8", "MXFP8, scales rounded up (RCEIL)", scaling="mx"),
    _e4m3(
        "nvfp4-plain", "NVFP4, no Hadamard, round to nearest", forward="fp4_e2m1", backward="fp4_e2m1", scaling="nvfp4"
    ),
    _e4m3(
        "nvfp4",
        "NVFP4, 16×16 weights, Hadamard, stochastic gradients",
        forward="fp4_e2m1",
        backward="fp4_e2m1",
        scaling="nvfp4",
        hadamard=True,
        stochastic_gradients=True,
    ),
    replace(_CURRENT, name="stored-e4m3", says="current scaling, weights stored in E4M3", storage="fp8_e4m3"),
    replace(
        _CURRENT,
        name="stored-e4m3-stochastic",
        says="weights stored in E4M3, rounded stochastically",
        storage="fp8_e4m3",
        stochastic_storage=True,
    ),
    LabRecipe(name="bf16-pure", says="BF16 weights and moments, no master weights", storage="bf16", moments="bf16"),
    LabRecipe(
        name="bf16-pure-stochastic",
        says="BF16 weights rounded stochastically, BF16 moments",
        storage="bf16",
        stochastic_storage=True,
        moments="bf16",
    ),
)

RECIPES: dict[str, LabRecipe] = {recipe.name: recipe for recipe in _ALL}
REFERENCE = "bf16"


def recipe_named(name: str) -> LabRecipe:
    """A recipe of the catalogue. Raises `UnknownName`."""
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES, hint="see trilemma precision train-lab --list")
    return RECIPES[name]
