"""A training command judged: its plan, its cards, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from trilemma.ask.answers import Answer
from trilemma.ask.checking import cards_of, idle_warnings
from trilemma.ask.logged import beside_training_log
from trilemma.ask.nouns import surrounded
from trilemma.errors import GpusUnsaid, InputError, shorten
from trilemma.hardware.cluster import Cluster
from trilemma.question import Question


def checked_training(framework: str, words: Sequence[str], gpu: Any, options: SimpleNamespace) -> Answer:
    """Read the command, check its layout, judge its plan."""
    from trilemma.ask.reinforced import with_round
    from trilemma.engines.training import read_training
    from trilemma.estimate.doubt import with_warnings
    from trilemma.estimate.training import estimate_training
    from trilemma.models.resolve import load_model
    from trilemma.search.training_remedies import with_training_remedies
    from trilemma.search.training_rules import check_training_plan

    accelerator, named, cards, counted = cards_of(gpu)
    if cards:
        raise InputError(f"training gives every card the same part of a model, and `gpu` names {gpu}; name one kind")
    try:
        command = read_training(framework, words, gpus=named if counted else None)
    except GpusUnsaid:
        raise GpusUnsaid(shorten(str(gpu)) if isinstance(gpu, str) else accelerator.id) from None
    needed = command.gpus
    if counted and needed > named:
        raise InputError(
            f"the command starts {needed} processes, but `gpu` names {named} GPUs; start fewer or name more"
        )
    per_node = min(command.gpus_per_node or accelerator.gpus_per_node, needed)
    cluster = surrounded(Cluster(accelerator=accelerator, gpus=needed, gpus_per_node=per_node), options)
    model = command.architecture or load_model(command.model, models_dir=options.models)
    check_training_plan(model, command.plan, command.workload, gpus=cluster.gpus)
    answer = estimate_training(
        Question(model=model, cluster=cluster, workload=command.workload, plan=command.plan),
    )  # fmt: skip
    answer = with_warnings(answer, with_round(command.warnings, answer, command.generated))
    answer = with_training_remedies(answer, model=model, cluster=cluster, workload=command.workload, plan=command.plan)
    if options.log is not None:
        answer = beside_training_log(answer, options.log)
    idle = idle_warnings(needed, named, counted=counted)
    return Answer.of(replace(answer, warnings=(*idle, *answer.warnings)))
