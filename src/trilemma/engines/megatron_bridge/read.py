"""A Megatron-Bridge command: ``run_recipe.py --recipe NAME …`` or ``scripts/training/train.sh --model M --mode MODE …``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trilemma.commands.launchers import split_launch
from trilemma.commands.option_words import whole
from trilemma.engines.megatron.wrapped import megatron_command
from trilemma.engines.trainer import Values, from_flags, from_overrides, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.errors import GpusUnsaid, InputError, PlanWarning, UnknownName, shorten
from trilemma.workloads import Method

_MODES = {"pretrain": "pretrain", "sft": "sft", "lora": "peft", "dora": "peft", "peft": "peft"}
#: Adapters of default_peft_config: rank 32 on every linear layer.
_RANK = 32


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a Megatron-Bridge recipe with what the command lays over it. Raises `InputError`."""
    launch = split_launch(words)
    of, facts = trainer("megatron_bridge"), framework_facts("megatron_bridge")
    spelled = [f"--{facts['short'][word]}" if word in facts["short"] else word for word in launch.words]
    overrides = [word for word in spelled if "=" in word and not word.startswith("--")]
    flags = from_flags(of, [word for word in spelled if word not in overrides])[0]
    values = Values(trainer=of, given={**flags, **from_overrides(overrides)}, dashes="--")
    name, row = _recipe(flags, facts)
    mode = str(flags.get("mode", row["kind"]))
    if mode not in _MODES:
        raise InputError(f"--mode {shorten(mode)!r} is not known; use {', '.join(_MODES)}")
    world = launch.gpus if launch.starter else None
    nodes, per_node = flags.get("nodes"), flags.get("gpus_per_node")
    if nodes is not None or per_node is not None:
        world = whole(nodes or 1, "--nodes") * whole(per_node or 8, "--gpus-per-node")
    world = world or gpus or row.get("gpus")
    if world is None:
        raise GpusUnsaid
    method: Method = "full"
    if _MODES[mode] == "peft":
        method = "dora" if mode == "dora" else "lora"
    return megatron_command(
        _words(values, row, facts, world), framework="megatron-bridge", model=str(row["model"]), gpus=world,
        nodes=whole(nodes, "--nodes") if nodes is not None else launch.nodes or max(-(-world // 8), 1) if world % 8 == 0 else 1,
        method=method, rank=(values.whole("rank") or _RANK) if method != "full" else 0, unknown=_unknown(values),
        warnings=[PlanWarning(code="recipe", message=f"{name}: layout, batch and precision are those of the recipe")],
    )  # fmt: skip


def _recipe(flags: dict[str, Any], facts: Any) -> tuple[str, dict[str, Any]]:
    """The recipe that is named, or that a model and a mode make; aliases are followed."""
    recipes, aliases = facts["recipes"], facts["aliases"]
    name = flags.get("recipe")
    if name is None:
        model, mode = flags.get("model"), flags.get("mode")
        if model is None or str(mode) not in _MODES:
            raise InputError(
                "the command names no recipe; give --recipe NAME, or --model M with --mode pretrain, sft or lora"
            )
        name = f"{model}_{_MODES[str(mode)]}_config"
    name = aliases.get(str(name), str(name))
    if name not in recipes:
        raise UnknownName(
            "Megatron-Bridge recipe", name, (*recipes, *aliases), hint="of the recipes that state their layout"
        )
    return name, dict(recipes[name])


def _words(values: Values, row: dict[str, Any], facts: Any, world: int) -> list[str]:
    """Flags of Megatron-LM for the recipe; a batch scales with GPUs as run_recipe.py scales it, unless it is stated."""

    def of(key: str, default: Any = None) -> Any:
        stated = values.whole(key) if values.has(key) else None
        return stated if stated is not None else row.get(key, default)

    batch = of("gbs", 1)
    if (
        not values.has("gbs")
        and row.get("gpus")
        and "perf" not in row
        and (batch * world) % row["gpus"] == 0
        and world > row["gpus"]
    ):
        batch = batch * world // row["gpus"]
    words = list(facts["precisions"][row.get("precision", "bf16")])
    words += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    if row.get("grad32") is False:
        words.append("--grad-reduce-in-bf16")
    for key, flag in (
        ("tp", "tensor-model-parallel-size"), ("pp", "pipeline-model-parallel-size"), ("cp", "context-parallel-size"),
        ("ep", "expert-model-parallel-size"), ("etp", "expert-tensor-parallel-size"),
        ("vpp", "num-virtual-stages-per-pipeline-rank"), ("seq", "seq-length"), ("mbs", "micro-batch-size"),
    ):  # fmt: skip
        if (value := of(key)) is not None:
            words += [f"--{flag}", str(value)]
    words += ["--global-batch-size", str(batch)]
    if values.on("sp") if values.has("sp") else row.get("sp"):
        words.append("--sequence-parallel")
    granularity = values.text("recompute") or row.get("recompute")
    if granularity:
        words += ["--recompute-granularity", str(granularity)]
        if granularity == "full":
            words += ["--recompute-method", "uniform", "--recompute-num-layers", "1"]
        elif modules := (values.words("modules") or row.get("modules")):
            words += ["--recompute-modules", *modules]
    if (steps := values.whole("steps")) is not None:
        words += ["--train-iters", str(steps)]
    return words


def _unknown(values: Values) -> tuple[str, ...]:
    """Dotted overrides name fields of the whole configuration, which no list here holds: only flags are judged."""
    return tuple(name for name in values.unknown if "." not in name)
