"""Flags of Megatron that choose number formats: the recipe of a training and its optimizer."""

from __future__ import annotations

from dataclasses import replace

from trilemma.commands.option_words import Options
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Optimizer, TrainingRecipe

_FORMATS = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8_e4m3"}
_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon", "dist_muon": "muon", "lion": "lion"}
#: --fp8-recipe → (recipe, recipe where parameters are gathered in FP8).
_FP8 = {
    "delayed": ("fp8", "fp8-primary"), "tensorwise": ("fp8", "fp8-primary"), "blockwise": ("fp8-block", "fp8-block"),
    "mxfp8": ("mxfp8", "mxfp8"),
}  # fmt: skip


def recipe_of(options: Options, warnings: list[PlanWarning]) -> TrainingRecipe:
    """The formats that the flags train in."""
    if not options.on("bf16") and not options.on("fp16"):
        text = "neither --bf16 nor --fp16: Megatron-LM trains in FP32, far from the card's peak"
        warnings.append(PlanWarning(code="fp32-training", message=text))
        return recipe("fp32")
    narrow = options.on("grad-reduce-in-bf16") or options.text("main-grads-dtype") == "bf16"
    base = recipe(_recipe_name(options))
    # FP16 accumulates gradients in FP16 unless told otherwise; BF16 in FP32 (arguments.py, validate_args).
    half = options.on("fp16") and not options.on("accumulate-allreduce-grads-in-fp32")
    compute = "fp16" if options.on("fp16") else "bf16"
    gradients = compute if narrow or half else "fp32"
    base = replace(base, gradients=gradients)
    if compute == "fp16":
        base = replace(base, weights=_as(base.weights), gathered=_as(base.gathered), activations="fp16")
    master = options.text("main-params-dtype") if options.on("use-precision-aware-optimizer") else None
    if master is not None:
        base = replace(base, master=_FORMATS.get(master, "fp32"))
    return base if base != recipe("bf16-bf16-grads") else recipe("bf16-bf16-grads")


def _as(name: str) -> str:
    return "fp16" if name == "bf16" else name


def _recipe_name(options: Options) -> str:
    if options.has("fp4-format"):
        return "nvfp4"
    if not options.has("fp8-format"):
        narrow = options.on("grad-reduce-in-bf16") or options.text("main-grads-dtype") == "bf16"
        return "bf16-bf16-grads" if narrow else "bf16"
    kind = options.text("fp8-recipe") or "delayed"
    if kind not in _FP8:
        raise InputError(f"--fp8-recipe {shorten(kind)!r} is not known; use {', '.join(_FP8)}")
    return _FP8[kind][options.on("fp8-param-gather", "fp8-param")]


def optimizer_of(options: Options, warnings: list[PlanWarning]) -> Optimizer:
    """The optimizer of the flags, with the formats of its moments."""
    name = options.text("optimizer") or "adam"
    if name not in _OPTIMIZERS:
        message = f"--optimizer {shorten(name)} is not known here; counted as Adam"
        warnings.append(PlanWarning(code="assumed-optimizer", message=message))
    found = optimizer(_OPTIMIZERS.get(name, "adamw"))
    if not options.on("use-precision-aware-optimizer"):
        return found
    moments = tuple(
        _FORMATS.get(options.text(flag) or "fp32", "fp32") for flag in ("exp-avg-dtype", "exp-avg-sq-dtype")
    )
    if moments == ("bf16", "bf16"):
        return optimizer("adamw-bf16-moments")
    return replace(found, moments=moments[: len(found.moments)]) if moments != ("fp32", "fp32") else found
