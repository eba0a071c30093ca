"""An ms-swift command on Megatron: ``megatron sft|pt|rlhf …``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from trilemma.commands.launchers import split_launch, visible_gpus
from trilemma.engines.llama_factory.read import started
from trilemma.engines.megatron.wrapped import flag_words, megatron_command
from trilemma.engines.preference import UPDATE_ONLY, beside_share
from trilemma.engines.trainer import Values, from_file, from_flags, is_configuration, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans.companions import Companion
from trilemma.workloads import Method

_PROGRAM = "megatron"


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a ``megatron`` command of ms-swift. Raises `InputError`."""
    launch = started(split_launch(words, programs=(_PROGRAM,)))
    own = list(launch.words)
    kind = own.pop(0) if launch.script == _PROGRAM and own else PurePosixPath(launch.script.replace(".", "/")).name
    of, facts = trainer("swift_megatron"), framework_facts("swift_megatron")
    document = from_file(own.pop(0)) if own and is_configuration(own[0]) else {}
    values = Values(trainer=of, given={**document, **from_flags(of, own)[0]}, dashes="--")
    model = values.text("model")
    if model is None or model.startswith("$"):
        raise InputError("the command names no model; give --model, such as --model Qwen/Qwen3-30B-A3B")
    given = {**facts["given"], **values.given}
    flags = ["--bf16" if str(given.get("fp16")).lower() != "true" else "--fp16"]
    flags += flag_words(given, facts["same"], facts["same_switches"])
    granularity = str(given["recompute_granularity"])  # "none" is a word of its own here
    if granularity.lower() != "none":
        flags += ["--recompute-granularity", granularity]
    if (chunks := values.whole("vpp")) is not None:
        flags += ["--num-virtual-stages-per-pipeline-rank", str(chunks)]
    warnings = values.warnings()
    seq = values.whole("seq")
    if seq is None:
        seq = 2048
        text = f"--max_length is not given: sequences are those of the data; {seq:,} tokens assumed"
        warnings.append(PlanWarning(code="assumed-length", message=text))
    method: Method = "lora" if (values.text("tuner") or "full").startswith("lora") else "full"
    sequences, companions = _beside(values, kind, method, warnings)
    world = launch.gpus or visible_gpus(launch) or gpus or 1
    command = megatron_command(
        [*flags, "--seq-length", str(seq)], framework="swift-megatron", model=model, gpus=world, nodes=launch.nodes or 1,
        method=method, rank=values.whole("rank") or 8 if method != "full" else 0, sequences=sequences, companions=companions,
        unknown=values.unknown, warnings=warnings, examples="packed" if values.on("packing") else "capped",
        targets=_targets(values, warnings) if method != "full" else (),
    )  # fmt: skip
    return replace(command, plan=replace(command.plan, loss="none")) if _headless(values, kind) else command


def _headless(values: Values, kind: str) -> bool:
    """Whether the model has a head of a few rows, or none: rewards, classes, embeddings."""
    facts = framework_facts("swift")
    named = facts["kinds"].get((values.text("rlhf") or "dpo") if kind == "rlhf" else kind, {})
    return bool(named.get("headless")) or values.text("task") in facts["tasks"]["headless"]


def _targets(values: Values, warnings: list[PlanWarning]) -> tuple[str, ...]:
    """Roles of the tensors that get adapters, by the names of Megatron-Core's modules."""
    known = framework_facts("swift_megatron")["modules"]
    asked = values.words("targets")
    missing = [name for name in asked if name not in known]
    if missing:
        text = f"--target_modules {shorten(', '.join(missing))}: no known module of Megatron-Core; not counted"
        warnings.append(PlanWarning(code="not-counted", message=text))
    found = dict.fromkeys(role for name in asked for role in known.get(name, ()))
    return tuple(found) or tuple(known["all-linear"])


def _beside(values: Values, kind: str, method: Method, warnings: list[PlanWarning]) -> tuple[int, list[Companion]]:
    """Sequences of an example, and what shares the cards."""
    kinds = framework_facts("swift")["kinds"]
    name = (values.text("rlhf") or "dpo") if kind == "rlhf" else kind
    if name not in kinds:
        raise InputError(f"--rlhf_type {shorten(name)!r} is not known; use {', '.join(kinds)}")
    row = kinds[name]
    companions: list[Companion] = []
    if (row.get("reference") or row.get("reference_beta")) and method == "full":
        companions.append(Companion(name="reference model", role="frozen"))
    if row.get("generates"):
        warnings.append(UPDATE_ONLY)
        if values.text("vllm_mode") == "colocate":
            share = values.real("vllm_share") or 0.9
            asleep = (values.text("vllm_sleep") or "0") != "0"
            companions.append(Companion(name="generation engine", role="engine", share=min(share, 0.99), asleep=asleep))
            warnings.append(beside_share(asleep=asleep))
    return int(row.get("sequences", 1)), companions
