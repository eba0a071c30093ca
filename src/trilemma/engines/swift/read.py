"""An ms-swift command: ``swift sft|pt|rlhf``, with flags or a configuration file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from trilemma.commands.launchers import LauncherCommand, split_launch, visible_gpus
from trilemma.engines.llama_factory.read import started
from trilemma.engines.trainer import Values, from_file, from_flags, is_configuration, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.launched import own_fsdp
from trilemma.engines.transformers.run import Sharding, TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import deepspeed_of, trainer_run
from trilemma.engines.trl.read import beside
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans.training import Implementation
from trilemma.quantities import ceil_div
from trilemma.workloads import Method

_PROGRAM = "swift"
#: Tuners whose state is counted as that of low-rank adapters.
_ADAPTERS = ("lora", "qlora", "lora+", "rslora", "adalora", "longlora")


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a ``swift`` command. Raises `InputError`."""
    launch = started(split_launch(words, programs=(_PROGRAM,)))
    own = list(launch.words)
    kind = own.pop(0) if launch.script == _PROGRAM and own else PurePosixPath(launch.script.replace(".", "/")).name
    path = next((word for word in own if is_configuration(word)), None) if own and is_configuration(own[0]) else None
    of = trainer("swift")
    document = from_file(path) if path is not None else {}
    environment = document.pop("ENV", None)
    flags, _ = from_flags(of, [word for word in own if word != path])
    path = path or (str(flags.pop("config")) if "config" in flags else None)
    values = Values(trainer=of, given={**document, **flags}, dashes="--")
    deepspeed = deepspeed_of(values, Path(path).parent if path else Path())
    sharding = None if deepspeed else _fsdp(values)
    framework: Implementation = "deepspeed" if deepspeed else "accelerate" if sharding else "transformers"
    run = trainer_run(values, framework=framework, method=method_of(values), deepspeed=deepspeed, sharding=sharding)
    _formats(run, values)
    rlhf = (values.text("rlhf") or "dpo") if kind == "rlhf" else kind
    kinds = framework_facts("swift")["kinds"]
    if rlhf not in kinds:
        raise InputError(f"--rlhf_type {shorten(rlhf)!r} is not known; use {', '.join(kinds)}")
    beside(run, values, kinds[rlhf])
    if values.text("task") in framework_facts("swift")["tasks"]["headless"]:
        run.loss = "none"
    if isinstance(environment, dict) and "NPROC_PER_NODE" in environment and not launch.gpus:
        launch = started(
            split_launch([f"NPROC_PER_NODE={environment['NPROC_PER_NODE']}", *words], programs=(_PROGRAM,))
        )
    return assemble(run, launch, gpus=_world(run, launch, gpus, int(of.defaults["sequences_of_step"])))


def _world(run: TrainerRun, launch: LauncherCommand, gpus: int | None, wanted: int) -> int:
    """Processes, and the accumulation that makes ``wanted`` sequences of a step where none is given (sft_args.py)."""
    world = launch.gpus
    if world is None:
        # cli/main.py starts torchrun only where NPROC_PER_NODE or NNODES is set: else one process holds the model.
        world = 1
        seen = visible_gpus(launch) or gpus or 1
        if seen > 1 and not run.sharding.zero:
            world, run.pp, run.spread = seen, seen, True
            text = f"without NPROC_PER_NODE one process spreads the layers over the {seen} GPUs, which work one after the other"
            run.warnings.append(PlanWarning(code="device-map", message=text))
    if run.accumulation is None and run.global_batch is None and run.micro_batch:
        run.accumulation = max(int(ceil_div(wanted, run.micro_batch * max(world // (run.tp * run.cp * run.pp), 1))), 1)
    return world


def method_of(values: Values) -> Method:
    kind = (values.text("tuner") or "lora").lower()
    if kind == "full":
        return "full"
    bits = values.text("quant_bits")
    if kind in _ADAPTERS:
        return "qlora" if bits == "4" or kind == "qlora" else "dora" if values.on("dora") else "lora"
    return "lora"


def _fsdp(values: Values) -> Sharding | None:
    """``--fsdp fsdp2`` (a preset: full_shard auto_wrap, version 2), a file, or words of the Trainer."""
    words = values.words("fsdp")
    if not words:
        return None
    if words[0] == "fsdp2":
        return own_fsdp(("full_shard", "auto_wrap"), {"fsdp_version": 2})
    if is_configuration(words[0]):
        document = from_file(words[0])
        config = document.get("fsdp_config") or {}
        return own_fsdp(str(document.get("fsdp", "full_shard")).split(), config)
    return own_fsdp(words, values.found("fsdp_config")[1])


def _formats(run: TrainerRun, values: Values) -> None:
    run.kept_format = "stored"
    if run.method == "lora" and values.text("quant_bits") == "8":
        run.base_format = "int8"
    if run.dtype == "fp16":
        run.compute = "fp16"
    kind = (values.text("tuner") or "lora").lower()
    if kind not in ("full", *_ADAPTERS):
        text = f"tuner {shorten(kind)} is counted as lora of rank {run.rank}"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
    if values.on("galore"):
        run.optimizer, run.projected = "galore_adamw", values.whole("galore_rank") or 128
    for name in ("offload_model", "offload_optimizer"):
        if values.on(name):
            text = f"--{name} moves state away while the engine generates; the update still holds it"
            run.warnings.append(PlanWarning(code="offloaded-rollout", message=text))
