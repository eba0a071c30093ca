"""Runs whose table leaves recompute out: what did run must have fitted."""

from __future__ import annotations

from dataclasses import replace

from trilemma.measured.tables import Row
from trilemma.measured.training.figures import MEMORY
from trilemma.measured.training.question import MeasuredTraining
from trilemma.memory.training import training_memory
from trilemma.plans.frameworks import every
from trilemma.plans.training import Recompute


def with_room(row: Row, question: MeasuredTraining) -> MeasuredTraining:
    """The question with every layer recomputed where the row does not say, nothing recomputed does not fit the card, and
    full recompute needs less; a measured peak proves that the run fitted. Who recomputes by parts may have found room
    otherwise: of those only rows of memory are read so."""
    if row.text("recompute") or question.plan.recompute.mode != "none":
        return question
    if row.text("measured_metric") != MEMORY and every()[question.plan.implementation].cuts:
        return question
    room = question.cluster.accelerator.runtime_total().value
    plain = training_memory(question.model, question.cluster, question.plan, question.workload)
    if float(plain.device_bytes) <= room:
        return question
    plan = replace(question.plan, recompute=Recompute(mode="full"))
    less = training_memory(question.model, question.cluster, plan, question.workload)
    if float(less.device_bytes) >= float(plain.device_bytes):
        return question
    told = tuple(note for note in question.assumed if "recompute" not in note)
    return replace(
        question, plan=plan, assumed=(*told, "full recompute: not stated, and without it the run does not fit")
    )
