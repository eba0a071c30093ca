"""Trainers around Megatron-Core: what they set, in the words of Megatron-LM, read as such."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trilemma.engines.megatron import read as megatron
from trilemma.engines.training import TrainingCommand
from trilemma.errors import PlanWarning
from trilemma.models.naming import without_url
from trilemma.models.resolve import load_model
from trilemma.plans.companions import Companion
from trilemma.workloads import Examples, Method, TrainingWorkload


def megatron_command(
    flags: Sequence[str],
    *,
    framework: str,
    model: str,
    gpus: int,
    nodes: int = 1,
    method: Method = "full",
    rank: int = 0,
    targets: tuple[str, ...] = (),
    sequences: int = 1,
    examples: Examples = "full",
    companions: Iterable[Companion] = (),
    unknown: tuple[str, ...] = (),
    warnings: Iterable[PlanWarning] = (),
) -> TrainingCommand:
    """The command that ``flags`` of Megatron-LM make of the model called ``model``, on ``gpus`` in all.

    ``sequences`` make one example of a batch (two of a preference). Raises `InputError`.
    """
    named = without_url(model)
    known = load_model(named)
    per_node = gpus // nodes if gpus % nodes == 0 else gpus
    launch = ["torchrun", "--nproc_per_node", str(per_node), "--nnodes", str(gpus // per_node), "pretrain_gpt.py"]
    found = megatron.read([*launch, "--tokenizer-model", named, *flags])
    load = found.workload
    plan = replace(
        found.plan, micro_batch=int(found.plan.micro_batch) * sequences, companions=tuple(companions),
    )  # fmt: skip
    return replace(
        found,
        framework=framework,
        model=named,
        architecture=known,
        plan=plan,
        workload=TrainingWorkload(
            seq=load.seq, global_batch=load.global_batch * sequences, tokens=load.tokens, method=method, rank=rank,
            targets=targets, examples=examples,
        ),
        unknown_flags=unknown,
        warnings=(*found.warnings, *warnings),
    )  # fmt: skip


def flag_words(given: Mapping[str, Any], names: Iterable[str], switches: Iterable[str]) -> list[str]:
    """Flags of Megatron-LM out of keys of the same name, written with underscores; lists take several words."""
    words: list[str] = []
    for name in names:
        value = given.get(name)
        if value in (None, "", "none", "None", []):
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    for name in switches:
        if str(given.get(name)).lower() in ("true", "1", "yes"):
            words.append(f"--{name.replace('_', '-')}")
    return words
