"""A torchtune command: ``tune run [torchrun's flags] RECIPE --config NAME|FILE key=value …``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trilemma.commands.launchers import LauncherCommand, split_launch
from trilemma.engines.preference import UPDATE_ONLY, frozen, trained
from trilemma.engines.trainer import Values, from_file, from_overrides, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.run import Sharding, TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import trainer_run
from trilemma.errors import InputError, PlanWarning, UnknownName, shorten
from trilemma.models.naming import without_url
from trilemma.workloads import Method

_OPTIMIZERS = {
    "adamw": "adamw_torch", "adam": "adamw_torch", "pagedadamw8bit": "paged_adamw_8bit", "adamw8bit": "adamw_8bit",
    "pagedadamw": "paged_adamw_32bit", "cpuoffloadoptimizer": "adamw_torch", "sgd": "sgd", "lion": "lion_pytorch",
}  # fmt: skip


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a ``tune run`` command. Raises `InputError`."""
    launch, recipe, own = _taken_apart(words)
    of = trainer("torchtune")
    values = Values(trainer=of, given={**_configuration(own), **from_overrides(own)})
    component = (values.text("model") or "").removeprefix("torchtune.models.")
    builder = component.rpartition(".")[2]
    values = values.over({"model._component_": _model(values, component)})
    run = trainer_run(values, framework="torchtune", method=_method(values, builder))
    run.targets = _targets(values) if run.method != "full" else ()
    run.loss = (
        "chunked"
        if "chunk" in (values.text("loss") or "").lower() or "Linear" in (values.text("loss") or "")
        else "full"
    )
    run.optimizer = _OPTIMIZERS.get((values.text("optimizer") or "adamw").rpartition(".")[2].lower(), run.optimizer)
    run.in_backward = values.on("in_backward")
    # Weights, gradients and moments are all of dtype (training.set_default_dtype): no copy in FP32.
    run.compute = run.dtype or "bf16"
    single = "single_device" in recipe
    if not single:
        moved = 1.0 if values.on("cpu_offload") else 0.0
        copies = values.whole("replicate") or 1
        run.sharding = Sharding(
            zero=3, reshard=values.found("reshard")[1] is None or values.on("reshard"),
            group=values.whole("shard", low=-1) if copies > 1 else None, offload_optimizer=moved, offload_weights=moved,
        )  # fmt: skip
    if run.seq is None:
        run.seq = int(of.defaults["seq_assumed"])
        text = f"tokenizer.max_seq_len is null: sequences are those of the data; {run.seq:,} tokens assumed"
        run.warnings.append(PlanWarning(code="assumed-length", message=text))
    _beside(run, recipe)
    return assemble(run, launch, gpus=1 if single else launch.gpus or gpus)


def _taken_apart(words: Sequence[str]) -> tuple[LauncherCommand, str, list[str]]:
    """Launch, recipe and the words behind it: ``tune run`` passes torchrun's flags before the recipe."""
    launch = split_launch(words, programs=("tune",))
    own = list(launch.words[1:] if launch.words[:1] == ("run",) else launch.words)
    at = 0
    while at < len(own) and own[at].startswith("-"):
        at += 1 if "=" in own[at] or own[at] in ("--standalone", "--no-python") else 2
    if at >= len(own):
        raise InputError(
            "tune run names no recipe; give one such as tune run full_finetune_distributed --config llama3_1/8B_full"
        )
    before = split_launch(
        [*(f"{name}={value}" for name, value in launch.environment.items()), "torchrun", *own[:at], "x.py"]
    )
    stated = before if at else launch
    # Without flags of torchrun a distributed recipe is refused by torchtune; the GPUs at hand are taken.
    return replace(stated, per_node=stated.per_node if at else None), PurePosixPath(own[at]).stem, own[at + 1 :]


def _configuration(own: Sequence[str]) -> dict[str, object]:
    name = next((one.partition("=")[2] for one in own if one.startswith("--config=")), None)
    if name is None and "--config" in own and own.index("--config") + 1 < len(own):
        name = own[own.index("--config") + 1]
    if name is None:
        raise InputError("tune run needs --config NAME, such as --config llama3_1/8B_full, or a file")
    if name.endswith((".yaml", ".yml")):
        known = framework_facts("torchtune")["configs"]
        shipped = "/".join(PurePosixPath(name).with_suffix("").parts[-2:])
        if not Path(name).exists() and shipped in known:
            return dict(known[shipped])
        return from_file(name, nested=True)
    found = framework_facts("torchtune")["configs"]
    if name not in found:
        raise UnknownName("torchtune configuration", name, found, hint="give a file to use your own")
    return dict(found[name])


def _model(values: Values, component: str) -> str:
    """The model that a builder makes: as its configurations download it, else by the folder of the checkpoint."""
    module, _, builder = component.rpartition(".")
    plain = builder.removeprefix("qlora_").removeprefix("lora_")
    known = framework_facts("torchtune")["builders"]
    bare = plain.removesuffix("_base").removesuffix("_instruct")
    for name in (f"{module}.{one}" for one in (plain, bare, f"{bare}_instruct", f"{bare}_base")):
        if name in known:
            return str(known[name])
    folder = values.text("folder")
    if folder:
        return without_url(PurePosixPath(folder.rstrip("/")).name)
    raise UnknownName("torchtune model", component or "(none)", known, hint="model._component_ of the configuration")


def _method(values: Values, builder: str) -> Method:
    if not values.whole("rank", low=0):
        return "full"
    if builder.startswith("qlora_") or values.on("quantised"):
        return "qlora"
    return "dora" if values.on("dora") else "lora"


def _targets(values: Values) -> tuple[str, ...]:
    """Layers with adapters in the words of Transformers."""
    names = tuple("o_proj" if name == "output_proj" else name for name in values.words("attention_targets"))
    return (*names, "gate_proj", "up_proj", "down_proj") if values.on("mlp_targets") else names


def _beside(run: TrainerRun, recipe: str) -> None:
    if "dpo" in recipe:
        run.sequences = 2
        if "full" in recipe:
            frozen(run, "reference model")
    elif "ppo" in recipe or "grpo" in recipe:
        frozen(run, "reference model")
        if "ppo" in recipe:
            frozen(run, "reward model")
            trained(run, "critic")
        text = "the cache of what the model generates is not counted"
        run.warnings += [UPDATE_ONLY, PlanWarning(code="not-counted", message=text)]
    elif "knowledge_distillation" in recipe:
        frozen(run, "teacher model")
        text = "the teacher is counted as large as the model that is trained"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
    elif "qat" in recipe:
        text = f"{shorten(recipe)}: fake quantisation keeps copies that are not counted"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
