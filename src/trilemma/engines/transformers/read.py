"""Commands of scripts on the Trainer of Transformers: torchrun, ``deepspeed``, ``accelerate launch``, with their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trilemma.commands.launchers import split_launch
from trilemma.engines.accelerate.config import AccelerateConfig
from trilemma.engines.trainer import Values, from_flags, trainer
from trilemma.engines.training import TrainingCommand
from trilemma.engines.transformers.launched import accelerate_of, own_fsdp
from trilemma.engines.transformers.run import TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import deepspeed_of, trainer_run
from trilemma.errors import InputError
from trilemma.plans.training import Implementation


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a fine-tuning command with the files that it names. Raises `InputError`."""
    launch = split_launch(words)
    from trilemma.engines.trl.read import kind_of
    from trilemma.engines.trl.read import read as read_trl

    if kind_of(launch) is not None:
        return read_trl(words, gpus=gpus)
    launched = accelerate_of(launch)
    of = trainer("transformers_flags")
    values = Values(trainer=of, given=from_flags(of, launch.words)[0], dashes="--")
    run = _run(values, launched)
    return assemble(
        run, launch, gpus=gpus, processes=launched.processes if launched else None,
        nodes=launched.machines if launched else None,
    )  # fmt: skip


def _run(values: Values, launched: AccelerateConfig | None) -> TrainerRun:
    if values.on("load_4bit") and not any(values.has(one) for one in ("adapters", "rank", "targets")):
        raise InputError("--load_in_4bit trains nothing by itself; add --use_peft and --lora_r")
    deepspeed = launched.deepspeed if launched and launched.deepspeed else deepspeed_of(values, Path())
    framework: Implementation = "deepspeed" if deepspeed else "accelerate" if launched else "transformers"
    sharding = own_fsdp(values.words("fsdp"), values.found("fsdp_config")[1])
    if sharding is None and deepspeed is None and launched is not None and launched.sharding.by != "ddp":
        sharding = launched.sharding
    run = trainer_run(
        values, framework=framework, deepspeed=deepspeed, sharding=sharding,
        launched_compute=launched.compute if launched else None,
    )  # fmt: skip
    if launched is not None:
        run.tp, run.cp = max(run.tp, launched.tp), max(run.cp, launched.cp)
        run.unknown = (*run.unknown, *launched.unknown)
        run.warnings += launched.warnings
    return run
