"""An Unsloth command: ``unsloth-cli.py`` with flags, or a script of one's own by the arguments of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trilemma.commands.launchers import split_launch
from trilemma.engines.preference import UPDATE_ONLY, generating
from trilemma.engines.trainer import Values, from_flags, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.run import TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import trainer_run
from trilemma.engines.unsloth.script import call_arguments
from trilemma.errors import PlanWarning
from trilemma.workloads import Method


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of an Unsloth command. Raises `InputError`."""
    launch = split_launch(words, programs=("unsloth",))
    of, facts = trainer("unsloth"), framework_facts("unsloth")
    own = [word for word in launch.words if word != "train"]
    flags = from_flags(of, own)[0]
    path = next((Path(word) for word in words if word.endswith(launch.script) and word.endswith(".py")), None)
    called: dict[str, Any] = {}
    if path is not None and path.is_file() and "cli" not in path.stem:
        called = call_arguments(path, facts["calls"])
        of = replace(of, defaults={**of.defaults, **facts["script_defaults"]})
        called = {key: value for key, value in called.items() if key in of.keys}
    values = Values(trainer=of, given={**called, **flags}, dashes="--")
    run = trainer_run(values, framework="transformers", method=_method(values))
    run.kept_format = "stored"
    run.loss = "fused"  # unsloth/kernels/cross_entropy_loss.py and the fused head of unsloth_zoo
    run.fused_layers = True  # unsloth/kernels/rms_layernorm.py, swiglu.py, fast_lora.py: their inputs alone
    if run.method == "lora" and values.on("load_8bit"):
        run.base_format = "int8"
    _engine(run, values)
    text = (
        "Unsloth is taken to fuse the loss with the output matrix; releases before November 2024, and families that it does"
        " not patch, hold whole logits"
    )
    run.warnings.append(PlanWarning(code="loss-by-release", message=text))
    return assemble(run, launch, gpus=gpus)


def _method(values: Values) -> Method:
    if values.on("full"):
        return "full"
    name = (values.text("model") or "").lower()
    return "qlora" if values.on("load_4bit") or name.endswith("bnb-4bit") else "lora"


def _engine(run: TrainerRun, values: Values) -> None:
    """GRPO with fast_inference: vLLM shares the weights of the card (FastLanguageModel.from_pretrained)."""
    if values.on("inference"):
        generating(run, values.real("share") or 0.5, asleep=False, where="gpu_memory_utilization")
        run.warnings.append(UPDATE_ONLY)
