"""A TRL command: ``trl sft|dpo|grpo …``, its scripts under a launcher, their ``--config`` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from trilemma.commands.launchers import LauncherCommand, split_launch, visible_gpus
from trilemma.engines.accelerate.config import AccelerateConfig, accelerate_from_mapping, read_accelerate
from trilemma.engines.preference import UPDATE_ONLY, frozen, gathering, generating, trained
from trilemma.engines.trainer import Values, from_file, from_flags, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.launched import accelerate_of, own_fsdp
from trilemma.engines.transformers.run import TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import deepspeed_of, trainer_run
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans.training import Implementation

#: What the command may also be called.
_PROGRAM = "trl"
_LAUNCHED = ("num_processes", "num_machines", "mixed_precision", "gpu_ids", "main_process_port", "machine_rank")


def kind_of(launch: LauncherCommand) -> str | None:
    """What a TRL command trains, by its word or the name of its script; None where neither is TRL's."""
    known = framework_facts("trl")["kinds"]
    if launch.script == _PROGRAM:
        return launch.words[0].replace("-", "_") if launch.words else ""
    stem = PurePosixPath(launch.script).stem if launch.script.endswith(".py") else launch.script.rpartition(".")[2]
    if launch.script.startswith("trl.scripts.") or launch.script.endswith(".py"):
        name = stem.lower().removeprefix("run_").removeprefix("train_").removesuffix("_trainer")
        return name if name in known else None
    return None


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a TRL command. Raises `InputError`."""
    launch = split_launch(words, programs=(_PROGRAM,))
    kind = kind_of(launch)
    kinds = framework_facts("trl")["kinds"]
    if kind not in kinds:
        raise InputError(f"trl {shorten(kind or '')!r} is not read; use {', '.join(kinds)}")
    by_program = launch.script == _PROGRAM
    of = trainer("trl")
    flags, left = from_flags(of, launch.words[1:] if by_program else launch.words)
    path = flags.pop("config", None)
    document = from_file(str(path)) if path is not None else {}
    values = Values(trainer=of, given={**document, **flags}, dashes="--")
    launched = _launched(launch, values, by_program=by_program)
    given = {key: value for key, value in values.given.items() if key not in (*_LAUNCHED, "accelerate_config", "env")}
    values = Values(trainer=of, given=given, dashes="--")
    run = run_of(values, kind=str(kind), launched=launched, chunked=by_program)
    if left:
        run.warnings.append(
            PlanWarning(code="unknown-flag", message=f"the stray word {shorten(left[0])!r} is not used")
        )
    return assemble(
        run, launch, gpus=visible_gpus(launch) or gpus, processes=launched.processes if launched else None,
        nodes=launched.machines if launched else None,
    )  # fmt: skip


def run_of(values: Values, *, kind: str, launched: AccelerateConfig | None, chunked: bool = False) -> TrainerRun:
    """The run that TRL makes of ``values``; ``chunked``: of a release whose usual loss of ``sft`` is in pieces."""
    deepspeed = launched.deepspeed if launched and launched.deepspeed else deepspeed_of(values, Path())
    sharding = own_fsdp(values.words("fsdp"), values.found("fsdp_config")[1])
    if sharding is None and launched is not None and launched.sharding.by != "ddp" and deepspeed is None:
        sharding = launched.sharding
    framework: Implementation = "deepspeed" if deepspeed else "accelerate" if launched else "transformers"
    run = trainer_run(
        values, framework=framework, deepspeed=deepspeed, sharding=sharding,
        launched_compute=launched.compute if launched else None,
    )  # fmt: skip
    if launched is not None:
        run.tp, run.cp = max(run.tp, launched.tp), max(run.cp, launched.cp)
        run.unknown = (*run.unknown, *launched.unknown)
        run.warnings += launched.warnings
    if run.sharding.by == "deepspeed":
        run.dtype = None
    # trl/trainer/sft_trainer.py: adapters on quantised weights in BF16; embedding and head go back to it
    # (peft_module_casting_to_bf16, while TRL had it).
    run.kept_format = "stored"
    if run.method == "qlora" or run.base_format is not None:
        run.narrow_adapters = True
        stated = run.dtype if values.has("dtype") else None
        run.dtype = stated or (run.compute if run.compute in ("bf16", "fp16") else None)
    if run.loss == "chunked" or (kind == "sft" and chunked and run.loss == "full" and not values.has("loss")):
        # trl/trainer/sft_trainer.py, _CHUNKED_LM_HEAD_CHUNK_SIZE: head and loss of 256 tokens at a time, made again in backward
        run.loss, run.loss_tile = "fused", 256
    beside(run, values, framework_facts("trl")["kinds"][kind])
    return run


def beside(run: TrainerRun, values: Values, kind: Mapping[str, Any]) -> None:
    """What preference and reinforcement training hold beside: reference, reward, critic, teacher, engine; the length of a
    sequence that is generated."""
    run.sequences = int(kind.get("sequences", 1))
    if kind.get("headless"):
        run.loss = "none"
    beta = values.real("beta")
    asked = beta if beta is not None else kind.get("reference_beta", 0.0)
    if (kind.get("reference") or asked) and run.method == "full" and not values.on("precomputed"):
        frozen(run, "reference model")
    if kind.get("reference") and run.method != "full":
        run.warnings.append(
            PlanWarning(code="reference-is-base", message="the frozen base model is the reference: no copy")
        )
    reward = values.text("reward")
    if kind.get("reward") or (reward is not None and kind.get("generates")):
        frozen(run, "reward model", of=reward)
    if kind.get("critic"):
        trained(run, "critic", of=reward)
    if kind.get("teacher"):
        frozen(run, "teacher model", of=values.text("teacher"))
    if not kind.get("generates"):
        return
    run.warnings.append(UPDATE_ONLY)
    if run.seq is None:
        run.seq = (values.whole("prompt") or 0) + (values.whole("completion") or 0) or None
    _generates(run, values)


def _generates(run: TrainerRun, values: Values) -> None:
    """An engine on the same cards, or the model itself."""
    run.generated = values.whole("completion")
    if values.on("vllm"):
        mode = values.text("vllm_mode") or "server"
        if mode == "colocate":
            if not values.has("vllm_mode"):
                text = "--use_vllm without --vllm_mode shares the cards (colocate), the default of newer releases"
                run.warnings.append(PlanWarning(code="assumed-mode", message=text))
            sleeps = values.found("vllm_sleep")[1] not in (None, False, "false", "False", "0", 0)
            share = values.real("vllm_share") or 0.0
            generating(run, share, asleep=sleeps, where=values.found("vllm_share")[0])
        elif mode != "server":
            raise InputError(f"--vllm_mode {shorten(mode)!r} is not known; use colocate or server")
    else:
        text = "the model generates by itself: the cache of what it generates is not counted"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
        if values.found("gather")[1] is None or values.on("gather"):
            gathering(run)


def _launched(launch: LauncherCommand, values: Values, *, by_program: bool) -> AccelerateConfig | None:
    """Accelerate's configuration: of its launcher, or of ``trl --accelerate_config`` with the launcher's flags over it."""
    if launch.starter == "accelerate":
        return accelerate_of(launch)
    if not by_program:
        return None
    name = values.given.get("accelerate_config")
    document: dict[str, Any] = {}
    if name is not None:
        presets = framework_facts("trl")["accelerate_configs"]
        if str(name) in presets and not Path(str(name)).exists():
            document = dict(presets[str(name)])
        elif not values.given.keys() & set(_LAUNCHED):
            return read_accelerate(str(name))
        else:
            document = from_file(str(name))
    given = {
        key: values.given[key] for key in ("num_processes", "num_machines", "mixed_precision") if key in values.given
    }
    if name is not None and "num_processes" not in given and str(name) in framework_facts("trl")["accelerate_configs"]:
        document.pop("num_processes", None)  # a preset's 8 stand for the machine's own
    if not document and not given:
        return None
    document.setdefault("distributed_type", "MULTI_GPU")
    found = accelerate_from_mapping({**document, **given}, name=str(name or "trl"))
    return replace(found, processes=found.processes)
