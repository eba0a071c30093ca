"""Number formats and the optimizer of a fine-tuning run, out of what its files state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trilemma.engines.training import framework_facts
from trilemma.errors import PlanWarning, shorten
from trilemma.memory.traits import implementation_facts
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Optimizer, TrainingRecipe

if TYPE_CHECKING:
    from trilemma.engines.transformers.run import TrainerRun


def recipe_of(run: TrainerRun) -> TrainingRecipe:
    """DeepSpeed keeps 16-bit weights with an FP32 partition; FSDP under mixed precision FP32 shards; autocast FP32 weights,
    unless the model is loaded in 16 bits, which the optimizer then updates. Adapters of PEFT are FP32 beside such a model
    (tuners/tuners_utils.py, cast_adapter_dtype)."""
    half = run.compute if run.compute in ("bf16", "fp16") else None
    loaded = run.dtype or ("bf16" if run.framework == "axolotl" and half else None)
    if run.sharding.by == "deepspeed":
        if half is None:
            return recipe("fp32")
        base = replace(recipe("zero-bf16"), gradients=run.sharding.gradients or half)
        return (
            base if half == "bf16" else replace(base, name="zero-fp16", weights=half, gathered=half, activations=half)
        )
    if half is None:
        return recipe("pure-bf16") if loaded == "bf16" else recipe("fp32")
    if run.sharding.by == "fsdp":
        base = recipe("fsdp")
    elif run.method != "full" and not run.narrow_adapters and implementation_facts(run.framework)["adapter_casts"]:
        base = recipe("amp")
    elif loaded in ("bf16", "fp16"):
        base = recipe("pure-bf16")
        return (
            base if loaded == "bf16" else replace(base, name="pure-fp16", weights=half, gathered=half, gradients=half)
        )
    else:
        base = recipe("amp")
    return base if half == "bf16" else replace(base, name=f"{base.name}-fp16", gathered=half, activations=half)


def optimizer_of(run: TrainerRun, warnings: list[PlanWarning]) -> Optimizer:
    names = framework_facts("transformers_flags")["optimizers"]
    key = run.optimizer.lower().removeprefix("optimizernames.")
    if key not in names:
        text = f"optimizer {shorten(run.optimizer)} is not known here; counted as AdamW"
        warnings.append(PlanWarning(code="assumed-optimizer", message=text))
        key = "adamw_torch"
    run.in_backward = run.in_backward or key in framework_facts("transformers_flags")["in_backward"]["names"]
    found = str(names[key])
    # ZeRO's partition is FP32 whatever the weights are (deepspeed/runtime/zero/stage_1_and_2.py).
    if run.sharding.by == "deepspeed" and found == "adamw-like-weights":
        found = "adamw"
    made = optimizer(found)
    if run.projected and made.projected:
        made = replace(made, projected=run.projected)
    return replace(made, paged=True) if key.startswith("paged") else made
