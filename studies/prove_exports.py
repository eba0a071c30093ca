"""Exports accepted by the real packages: quantise, save, reload, and compare the perplexity with the emulated one.

``python studies/prove_exports.py llm-compressor|torchao [WEIGHTS DATA]``. Without weights the tiny model of the package is
taken. `scripts/prove_exports.sh` makes the environments (llm-compressor pins an older transformers) and runs both. Exit
code 1 where a perplexity differs by more than half a percent.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trilemma.models.resolve import load_model
from trilemma.precision import tiny_model
from trilemma.precision.emulation import EmulatedFormats
from trilemma.precision.export import PlanModules, modules_of
from trilemma.precision.export.writers import export_text
from trilemma.precision.measure import Evaluation, open_bench
from trilemma.precision.patterns import PrecisionRule
from trilemma.precision.plan import PrecisionPlan, plan_from_rules

TOLERANCE = 0.005
#: Formats of weights and of dynamic activations for attention and feed-forward; the rest stays as it is.
Recipe = tuple[tuple[str, str], tuple[str, str]]
LLM_COMPRESSOR: Mapping[str, Recipe] = {
    "FP8_DYNAMIC": (("fp8_channel", "fp8_e4m3"),) * 2,
    "W8A8": (("int8_channel", "int8"),) * 2,
    "W4A16 g32": (("int4_g32", "own"),) * 2,
    "NVFP4A16": (("nvfp4", "own"),) * 2,
    "mixed FP8 + W4A16": (("fp8_channel", "fp8_e4m3"), ("int4_g32", "own")),
}
TORCHAO: Mapping[str, Recipe] = {
    "Int8WeightOnly": (("int8_channel", "own"),) * 2,
    "Int8DynamicActivationInt8Weight": (("int8_channel", "int8"),) * 2,
    "Float8WeightOnly": (("fp8_channel", "own"),) * 2,
    "IntxWeightOnly int4 g32": (("int4_g32", "own"),) * 2,
    "NVFP4WeightOnly": (("nvfp4", "own"),) * 2,
    "mixed Int8 + Intx int4": (("int8_channel", "own"), ("int4_g32", "own")),
}
_PER_TOKEN = {"fp8_e4m3": "fp8_channel", "int8": "int8_channel"}


def plan_of(folder: Path, recipe: Recipe) -> PrecisionPlan:
    """Attention and feed-forward in their formats, embedding and head as they are."""
    (attention, attention_inputs), (ffn, ffn_inputs) = recipe
    rules = (
        PrecisionRule(roles=("attention",), weights=attention, activations=attention_inputs),
        PrecisionRule(roles=("ffn",), weights=ffn, activations=ffn_inputs),
        PrecisionRule(roles=("*",)),
    )
    return plan_from_rules(load_model(str(folder)), rules, name="proof")


def emulated(bench: Evaluation, plan: PrecisionPlan) -> float:
    """Perplexity on the held-out tokens with the plan's weights and activations emulated."""
    dtype = plan.model.dtype
    chosen = [one for one in plan.groups if one.weights != dtype]
    weights = {one.group.name: one.weights.name for one in chosen}
    inputs = {one.group.name: _PER_TOKEN[one.activations.name] for one in chosen if one.activations != dtype}
    return bench.held_out.quality(EmulatedFormats(weights=weights, activations=inputs)).perplexity


def perplexity(model: Any, bench: Evaluation) -> float:
    """Perplexity of a Transformers model on the same tokens."""
    run = bench.held_out
    with torch.inference_mode():
        logits = model(run.inputs).logits.float().flatten(0, 1)
        return math.exp(torch.nn.functional.cross_entropy(logits, run.targets.flatten()).item())


def by_llm_compressor(folder: Path, modules: PlanModules, out: Path) -> Any:
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = out / "recipe.yaml"
    recipe.write_text(export_text(modules, "llm-compressor")[1], encoding="utf-8")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    oneshot(model=model, tokenizer=tokenizer, recipe=str(recipe), output_dir=str(out / "made"))
    made = json.loads((out / "made" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    ours = json.loads(export_text(modules, "compressed-tensors")[1])
    if made["format"] != ours["format"] or len(made["config_groups"]) != len(ours["config_groups"]):
        raise SystemExit(f"the checkpoint is {made['format']}, the exported config says {ours['format']}")
    # BF16: compressed-tensors expands some layouts to it whatever is asked for
    return AutoModelForCausalLM.from_pretrained(out / "made", dtype=torch.bfloat16)


def by_torchao(folder: Path, modules: PlanModules, out: Path) -> Any:
    from torchao.core.config import config_from_dict
    from transformers import AutoModelForCausalLM, TorchAoConfig

    config = TorchAoConfig(quant_type=config_from_dict(json.loads(export_text(modules, "torchao")[1])))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=config)
    model.save_pretrained(out / "made")
    return AutoModelForCausalLM.from_pretrained(out / "made", dtype=torch.float32)


def main(arguments: Sequence[str]) -> int:
    torch.set_num_threads(1)
    tool = arguments[0] if arguments else ""
    makers: dict[str, tuple[Mapping[str, Recipe], Callable[[Path, PlanModules, Path], Any]]] = {
        "llm-compressor": (LLM_COMPRESSOR, by_llm_compressor),
        "torchao": (TORCHAO, by_torchao),
    }
    if tool not in makers:
        print(f"give one of {', '.join(makers)}", file=sys.stderr)
        return 2
    folder = Path(arguments[1]) if len(arguments) > 1 else tiny_model.FOLDER
    data = Path(arguments[2]) if len(arguments) > 2 else tiny_model.FOLDER / "held_out.txt"
    bench = open_bench(folder, data)
    recipes, make = makers[tool]
    worst = 0.0
    print(f"full precision: perplexity {bench.held_out.quality(EmulatedFormats()).reference_perplexity:.5f}")
    for name, recipe in recipes.items():
        began = time.perf_counter()
        plan = plan_of(folder, recipe)
        with tempfile.TemporaryDirectory() as out:
            reloaded = perplexity(make(folder, modules_of(plan), Path(out)), bench)
        expected = emulated(bench, plan)
        difference = reloaded / expected - 1
        worst = max(worst, abs(difference))
        seconds = time.perf_counter() - began
        print(
            f"{tool} {name:32s} emulated {expected:.5f}  reloaded {reloaded:.5f}  {difference:+.4%}  {seconds:.1f} s",
            flush=True,
        )
    print("within" if worst <= TOLERANCE else "NOT within", f"{TOLERANCE:.1%}: worst {worst:.4%}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
