"""A NeMo AutoModel command: ``automodel FILE [--nproc-per-node N] [--section.key value …]``, or torchrun before its module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from trilemma.commands.launchers import LauncherCommand, split_launch
from trilemma.commands.option_words import whole
from trilemma.engines.preference import frozen
from trilemma.engines.trainer import Values, from_file, from_overrides, is_configuration, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.run import Sharding, assemble
from trilemma.engines.transformers.trainer_run import trainer_run
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans.training import Dispatcher
from trilemma.workloads import Method

#: Classes of optimizers, by their last name in small letters.
_OPTIMIZERS = {
    "adam": "adamw_torch", "adamw": "adamw_torch", "fusedadam": "adamw_apex_fused", "flashadamw": "adamw_torch",
    "sgd": "sgd", "muon": "muon",
}  # fmt: skip
_PROGRAMS = ("automodel", "am")


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of an AutoModel command. Raises `InputError`."""
    launch, own = _taken_apart(words)
    path = next((word for word in own if is_configuration(word)), None)
    if path is None:
        raise InputError("automodel needs its configuration, a YAML file: automodel FILE.yaml --nproc-per-node 8")
    given = {**from_file(path, nested=True), **_overrides(own)}
    packed = "packed_sequence.packed_sequence_size"  # 0: sequences are not packed
    values = Values(
        trainer=trainer("automodel"),
        given={key: value for key, value in given.items() if key != packed or str(value) != "0"},
    )
    _check_recipe(values)
    run = trainer_run(values, framework="automodel", method=_method(values))
    run.compute, run.dtype = "bf16", run.dtype or "bf16"
    run.loss = "fused" if "fused" in (values.text("loss") or "").lower() else "full"
    run.optimizer = _OPTIMIZERS.get((values.text("optimizer") or "adamw").rpartition(".")[2].lower(), run.optimizer)
    run.attention = "flash" if (values.text("attention") or "te") in ("te", "flash_attention_2") else "sdpa"
    run.sharding = _sharding(values, fp32=run.dtype == "fp32")
    run.ep, run.pp = values.whole("ep") or 1, values.whole("pp") or 1
    run.dispatcher = _dispatcher(values)
    if run.pp > 1:  # a pipeline cuts the local batch
        run.micro_batch = values.whole("pipeline_micro_batch")
    if any(key.startswith("teacher_model.") for key in values.given):
        frozen(run, "teacher model")
        text = "the teacher is counted as large as the model that is trained"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
    if run.seq is None:
        run.seq = int(values.trainer.defaults["seq_assumed"])
        text = f"the dataset states no length of its sequences; {run.seq:,} tokens assumed"
        run.warnings.append(PlanWarning(code="assumed-length", message=text))
    return assemble(run, launch, gpus=launch.gpus or gpus)


def _taken_apart(words: Sequence[str]) -> tuple[LauncherCommand, list[str]]:
    """Launch and own words; AutoModel starts torchrun itself with ``--nproc-per-node``."""
    launch = split_launch(words, programs=_PROGRAMS)
    own = [word for word in launch.words if word not in _PROGRAMS]
    for at, word in enumerate(own):
        name, sign, value = word.replace("_", "-").partition("=")
        if name != "--nproc-per-node":
            continue
        text = value if sign else own[at + 1] if at + 1 < len(own) else ""
        number = whole(text, "--nproc-per-node", low=1)
        nodes = launch.nodes or 1
        rest = own[:at] + own[at + (1 if sign else 2) :]
        return replace(launch, per_node=number, nodes=nodes), rest
    return launch, own


def _overrides(own: Sequence[str]) -> dict[str, Any]:
    """``--section.key value`` and ``--section.key=value``."""

    def joined() -> Iterator[str]:
        for at, word in enumerate(own):
            if word.startswith("--") and "=" in word:
                yield word
            elif word.startswith("--") and at + 1 < len(own) and not own[at + 1].startswith("--"):
                yield f"{word}={own[at + 1]}"

    return from_overrides(joined())


def _check_recipe(values: Values) -> None:
    recipe = (values.text("recipe") or "").rpartition(".")[2].lower()
    for word in framework_facts("automodel")["other_recipes"]:
        if word in recipe:
            raise InputError(f"recipe {shorten(recipe)}: of NeMo AutoModel the training of language models is read")


def _method(values: Values) -> Method:
    if not values.has("adapters") and not values.has("rank"):
        return "full"
    if values.on("load_4bit"):
        return "qlora"
    return "dora" if values.on("dora") else "lora"


def _sharding(values: Values, *, fp32: bool) -> Sharding:
    """FSDP2 frees gathered layers where told to, or where no pipeline passes (``reshard_after_forward`` None); shards are in
    the format that the model is loaded in."""
    strategy = (values.text("strategy") or "fsdp2").lower()
    if strategy == "ddp":
        return Sharding()
    copies, stated = values.whole("replicate") or 1, values.found("reshard")[1]
    shard = values.whole("shard")
    return Sharding(
        by="fsdp" if fp32 else "ddp",
        zero=3,
        reshard=(values.whole("pp") or 1) == 1 if stated is None else values.on("reshard"),
        group=shard // copies if copies > 1 and shard else None,
        offload_optimizer=1.0 if values.has("offload") else 0.0,
        offload_weights=1.0 if values.has("offload") else 0.0,
    )


def _dispatcher(values: Values) -> Dispatcher | None:
    """Tokens of experts go by the backend's dispatcher, DeepEP where nothing says; ``torch`` gathers and scatters."""
    if (values.whole("ep") or 1) == 1:
        return None
    named = (values.text("dispatcher") or "deepep").lower()
    known: dict[str, Dispatcher] = {"deepep": "deepep", "uccl_ep": "deepep", "hybridep": "hybridep", "mok": "hybridep"}
    return known.get(named, "alltoall")
