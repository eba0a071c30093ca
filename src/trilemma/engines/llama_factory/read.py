"""A LLaMA-Factory command: ``llamafactory-cli train FILE.yaml [key=value …]``, or src/train.py with flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trilemma.commands.launchers import LauncherCommand, split_launch, visible_gpus
from trilemma.commands.option_words import whole
from trilemma.engines.preference import UPDATE_ONLY, frozen, trained
from trilemma.engines.trainer import Values, from_file, from_flags, from_overrides, is_configuration, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.launched import accelerate_of, own_fsdp
from trilemma.engines.transformers.run import TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import deepspeed_of, trainer_run
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans.training import Implementation
from trilemma.workloads import Method

_PROGRAMS = ("llamafactory-cli", "lmf")


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a LLaMA-Factory command. Raises `InputError`."""
    launch = started(split_launch(words, programs=_PROGRAMS))
    own = [word for word in launch.words if word != "train"]
    path = own[0] if own and is_configuration(own[0]) else None
    of = trainer("llama_factory")
    document = from_file(path) if path is not None else {}
    # Behind a file stand key=value words, else flags (hparams/parser.py, read_args).
    rest = own[1:] if path is not None else own
    over = from_overrides(rest) if path is not None else from_flags(of, rest)[0]
    values = Values(trainer=of, given={**document, **over}, dashes="" if path else "--")
    launched = accelerate_of(launch)
    folder = Path(path).parent if path else Path()
    deepspeed = launched.deepspeed if launched and launched.deepspeed else deepspeed_of(values, folder)
    framework: Implementation = "deepspeed" if deepspeed else "accelerate" if launched else "transformers"
    sharding = own_fsdp(values.words("fsdp"), values.found("fsdp_config")[1])
    if sharding is None and deepspeed is None and launched is not None and launched.sharding.by != "ddp":
        sharding = launched.sharding
    run = trainer_run(
        values, framework=framework, method=method_of(values), deepspeed=deepspeed, sharding=sharding,
        launched_compute=launched.compute if launched else None,
    )  # fmt: skip
    if launched is not None:
        run.unknown, run.warnings = (*run.unknown, *launched.unknown), [*run.warnings, *launched.warnings]
    _held(run, values)
    _stage(run, values)
    # llamafactory-cli starts on every GPU it sees (launcher.py); a script alone on one.
    at_hand = visible_gpus(launch) or gpus
    return assemble(
        run, launch, gpus=at_hand, processes=launched.processes if launched else None,
        nodes=launched.machines if launched else None,
    )  # fmt: skip


def started(launch: LauncherCommand) -> LauncherCommand:
    """Processes and nodes that NPROC_PER_NODE and NNODES ask for (LLaMA-Factory, ms-swift), where no launcher says them."""
    environment = launch.environment
    given = {
        name: whole(environment[name], name, high=2**16)
        for name in ("NPROC_PER_NODE", "NNODES")
        if environment.get(name, "").strip() and not environment[name].startswith("$")
    }
    if launch.starter or not given:
        return launch
    return replace(launch, per_node=given.get("NPROC_PER_NODE"), nodes=given.get("NNODES"))


def method_of(values: Values) -> Method:
    """finetuning_type with quantization_bit: adapters unless full or freeze is asked for."""
    kind = (values.text("finetuning") or "lora").lower()
    if kind == "full":
        return "full"
    if kind == "freeze":
        return "full"
    if kind not in ("lora", "oft"):
        raise InputError(f"finetuning_type {shorten(kind)!r} is not known; use lora, full, freeze or oft")
    if values.whole("quant_bits") == 4:
        return "qlora"
    return "dora" if values.on("dora") else "lora"


def _held(run: TrainerRun, values: Values) -> None:
    """Formats: loaded in the compute format; what is trained is cast to FP32 under autocast unless pure_bf16, ZeRO-3 or FSDP
    (model/loader.py, adapter.py)."""
    run.kept_format = "stored"  # model/model_utils/checkpointing.py, prepare_model_for_training: norms alone
    if values.on("unsloth") or values.on("unsloth_checkpointing"):
        run.activation_offload = run.checkpointing  # model_utils/unsloth.py, model_utils/checkpointing.py
    if values.on("pure_bf16"):
        run.compute, run.dtype, run.narrow_adapters = "bf16", "bf16", True
    elif run.method != "full" and run.compute in ("bf16", "fp16"):
        run.dtype = run.compute
    if run.method == "lora" and values.whole("quant_bits") == 8:
        run.base_format = "int8"
    kind = (values.text("finetuning") or "").lower()
    if kind == "oft":
        text = "finetuning_type oft is counted as lora"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
    if kind == "freeze":
        # model/adapter.py, _setup_freeze_tuning: the last layers (or the first, where negative), their weights in FP32
        run.trained_layers = abs(values.whole("trained_layers", low=-(2**16)) or 2)
    _optimizer(run, values)


def _optimizer(run: TrainerRun, values: Values) -> None:
    """The optimizers that have arguments of their own (train/trainer_utils.py, create_custom_optimizer)."""
    eight = "8bit" in run.optimizer
    if values.on("muon"):
        run.optimizer = "muon"
    if values.on("mini"):
        run.optimizer = "adam_mini"
    if values.on("galore"):
        run.optimizer = "galore_adafactor" if "adafactor" in run.optimizer else f"galore_adamw{'_8bit' * eight}"
        run.projected, run.in_backward = values.whole("galore_rank") or 16, values.on("galore_layers")
    if values.on("apollo"):
        run.optimizer, run.projected = "apollo_adamw", values.whole("apollo_rank") or 16
        run.in_backward = values.on("apollo_layers")
    if values.on("badam"):
        if (values.text("badam_mode") or "layer") == "layer":
            run.trained_layers = 1
        else:
            text = "badam_mode ratio keeps less state than is counted"
            run.warnings.append(PlanWarning(code="counted-too-much", message=text))


def _stage(run: TrainerRun, values: Values) -> None:
    stage = (values.text("stage") or "sft").lower()
    stages: dict[str, Any] = framework_facts("llama_factory")["stages"]
    if stage not in stages:
        raise InputError(f"stage {shorten(stage)!r} is not known; use {', '.join(stages)}")
    kind = stages[stage]
    run.sequences = int(kind.get("sequences", 1))
    if kind.get("headless"):
        run.loss = "none"
    alone = (values.text("preference_loss") or "") in ("orpo", "simpo")
    named = values.text("reference")
    if kind.get("reference") and not alone and (run.method == "full" or named is not None):
        frozen(run, "reference model", of=named)
    if kind.get("reward") and (values.text("reward_kind") or "lora") == "full":
        frozen(run, "reward model", of=values.text("reward"))
    if kind.get("generates"):
        if run.method == "full":
            trained(run, "value head and critic")
        run.warnings += [
            UPDATE_ONLY,
            PlanWarning(code="not-counted", message="the cache of what the model generates is not counted"),
        ]
