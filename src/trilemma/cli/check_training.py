"""``trilemma check`` of a training command: its plan, judged before it runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from trilemma.cli.arguments import read_network
from trilemma.cli.output import show_estimate
from trilemma.cli.training_arguments import with_host_memory
from trilemma.errors import Caution, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trilemma.engines.training import TrainingCommand
    from trilemma.hardware.cluster import Cluster


#: Cautions of a reader that name what the command asks for and no line counts.
_UNCOUNTED = ("not-counted", "unknown-flag")


def check(arguments: argparse.Namespace, framework: str, words: Sequence[str]) -> int:
    """Read the command, check its layout, print its estimate; exit code 0 where it fits, else 1."""
    from trilemma.engines.training import read_training
    from trilemma.estimate.training import estimate_training
    from trilemma.hardware.catalogue import parse_gpu_argument
    from trilemma.models.resolve import load_model
    from trilemma.question import Question
    from trilemma.search.training_remedies import with_training_remedies
    from trilemma.search.training_rules import check_training_plan

    if arguments.gpu is None:
        raise InputError("the command does not say which cards it runs on; name them, such as --gpu h100-sxm:8")
    if arguments.log is not None:
        raise InputError("--log compares serving engines with their start-up logs; leave it out for training")
    _, named = parse_gpu_argument(arguments.gpu)
    counted = ":" in arguments.gpu and arguments.gpu.rpartition(":")[2].isdigit()
    command = read_training(framework, words, gpus=named if counted else None)
    cluster, cautions = _cluster(arguments.gpu, command, counted=counted)
    cluster = read_network(arguments, with_host_memory(cluster, arguments))
    model = command.architecture or load_model(command.model, models_dir=arguments.models)
    check_training_plan(model, command.plan, command.workload, gpus=cluster.gpus)
    answer = estimate_training(
        Question(model=model, cluster=cluster, workload=command.workload, plan=command.plan),
        uncounted=tuple(one for one in command.cautions if one.code in _UNCOUNTED),
    )  # fmt: skip
    answer = with_training_remedies(answer, model=model, cluster=cluster, workload=command.workload, plan=command.plan)
    return show_estimate(
        replace(answer, warnings=(*cautions, *command.cautions, *answer.warnings)),
        as_json=arguments.json,
        explain=arguments.explain,
    )


def _cluster(gpu: str, command: TrainingCommand, *, counted: bool) -> tuple[Cluster, tuple[Caution, ...]]:
    """The cards that the command starts processes on; nodes as its launcher shapes them."""
    from trilemma.hardware.catalogue import parse_gpu_argument
    from trilemma.hardware.cluster import Cluster

    accelerator, named = parse_gpu_argument(gpu)
    needed = command.gpus
    if counted and needed > named:
        raise InputError(
            f"the command starts {needed} processes, but --gpu names {named} GPUs; start fewer or name more"
        )
    cautions: tuple[Caution, ...] = ()
    if counted and needed < named:
        message = f"the command uses {needed} of the {named} GPUs; the others stay idle"
        cautions = (Caution(code="idle-gpus", message=message),)
    per_node = min(command.gpus_per_node or accelerator.gpus_per_node, needed)
    return Cluster(accelerator=accelerator, gpus=needed, gpus_per_node=per_node), cautions
