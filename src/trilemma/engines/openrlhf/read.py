"""An OpenRLHF command: ``deepspeed --module openrlhf.cli.train_sft …``, ``python -m openrlhf.cli.train_ppo_ray …``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trilemma.commands.launchers import LauncherCommand, split_launch
from trilemma.engines.preference import UPDATE_ONLY, frozen, generating, trained
from trilemma.engines.trainer import Values, from_flags, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.run import Sharding, TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import trainer_run
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.workloads import Method


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of an OpenRLHF command: of its actor, where several models train. Raises `InputError`."""
    launch = split_launch(words)
    kind = launch.script.rpartition(".")[2].removeprefix("train_").removesuffix("_ray_hybrid_engine")
    kinds = framework_facts("openrlhf")["kinds"]
    if kind not in kinds:
        raise InputError(f"openrlhf.cli.train_{shorten(kind)} is not read; use train_{', train_'.join(kinds)}")
    of = trainer("openrlhf")
    own = framework_facts("openrlhf").get("ppo_defaults" if kind in ("ppo", "ppo_ray") else f"{kind}_defaults", {})
    of = replace(of, defaults={**of.defaults, **own})
    values = Values(trainer=of, given=from_flags(of, launch.words)[0], dashes="--")
    run = trainer_run(values, framework="deepspeed", method=_method(values), sharding=_sharding(values))
    run.compute = values.text("param_dtype") or "bf16"
    run.dtype = None
    world = gpus
    if kind == "ppo_ray":
        world = _ray(run, values)
        launch = _actor(launch, values)
    elif kinds[kind].get("together"):
        _beside(run, values, together=True)
        run.warnings.append(UPDATE_ONLY)
    else:
        run.sequences = int(kinds[kind].get("sequences", 1))
        if kinds[kind].get("reference"):
            frozen(run, "reference model", of=values.text("reference"), offloaded=values.on("reference_offload"))
    return assemble(run, launch, gpus=world)


def _method(values: Values) -> Method:
    if not values.whole("rank", low=0):
        return "full"
    return "qlora" if values.on("load_4bit") else "lora"


def _sharding(values: Values) -> Sharding:
    """ZeRO of utils/deepspeed: the stage, Adam on the host, gradients in a format of their own."""
    stage = values.whole("zero", low=0)
    if stage is None or stage > 3:
        raise InputError(f"{values.found('zero')[0]} {stage} is out of range; give 0 to 3")
    kinds = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    return Sharding(
        by="deepspeed", zero=stage, offload_optimizer=1.0 if values.on("adam_offload") else 0.0,
        gradients=kinds.get(values.text("gradients") or ""),
    )  # fmt: skip


def _actor(launch: LauncherCommand, values: Values) -> LauncherCommand:
    """The actor's processes, which Ray starts."""
    return replace(launch, nodes=values.whole("nodes"), per_node=values.whole("gpus_per_node"), total=None)


def _ray(run: TrainerRun, values: Values) -> int:
    """What shares the actor's cards, and how many these are; models and engines on cards of their own are named."""
    together = values.on("colocate")
    apart = [*_beside(run, values, together=together), *_engines(run, values, together=together)]
    if apart:
        text = f"{', '.join(apart)} on cards of their own: the actor's are judged"
        run.warnings.append(PlanWarning(code="others-apart", message=text))
    run.warnings.append(UPDATE_ONLY)
    return (values.whole("nodes") or 1) * (values.whole("gpus_per_node") or 1)


def _beside(run: TrainerRun, values: Values, *, together: bool) -> list[str]:
    """Adds the models that share the actor's cards and returns the names of those that do not."""
    if run.seq is None or values.has("prompt"):
        run.seq = (values.whole("prompt") or 0) + (values.whole("completion") or 0) or run.seq
    run.generated = values.whole("completion")
    apart: list[str] = []
    if (values.real("kl") or 0) > 0 and run.method == "full":
        if together or values.on("colocate_reference"):
            frozen(run, "reference model", offloaded=values.on("reference_offload"))
        else:
            apart.append("reference model")
    reward = values.text("reward")
    if reward is not None and values.text("reward_url") is None:
        if together:
            frozen(run, "reward model", of=reward, offloaded=values.on("reference_offload"))
        else:
            apart.append("reward model")
    if values.text("estimator") == "gae":
        if together:
            trained(run, "critic", of=values.text("critic") or reward)
        else:
            apart.append("critic")
    if values.on("ema"):
        frozen(run, "moving average of the weights")
    return apart


def _engines(run: TrainerRun, values: Values, *, together: bool) -> list[str]:
    engines: Any = values.whole("engines", low=0)
    if not engines:
        text = "no vLLM engines: the cache of what the model generates is not counted"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
        return []
    if not together:
        return [f"{engines} engines of {values.whole('engine_tp') or 1} GPUs"]
    share = values.real("vllm_share") or 0.0
    generating(run, share, asleep=values.on("vllm_sleep"), where=values.found("vllm_share")[0])
    return []
