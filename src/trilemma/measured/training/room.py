"""Runs whose table leaves out recompute, chunks or micro-batches: what did run must have fitted, and ran as most do."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from trilemma.measured.tables import Row
from trilemma.measured.training.figures import MEMORY
from trilemma.measured.training.question import MeasuredTraining
from trilemma.memory.training import training_memory
from trilemma.plans.frameworks import every
from trilemma.plans.training import Recompute

#: Layers of a chunk in the middle of what public runs of Megatron with chunks state (100 of 118 runs that state them have any).
_LAYERS_A_CHUNK = 2


def states_chunks(rows: Iterable[Row]) -> set[str]:
    """The sources of which some row states chunks of a pipeline: their other rows have none."""
    return {row.text("source_title") for row in rows if row.text("vpp")}


def as_it_ran(row: Row, question: MeasuredTraining, chunked: Collection[str] = ()) -> MeasuredTraining:
    """The question with what its table leaves out: recompute, chunks of a pipeline (`states_chunks`) and micro-batches."""
    question = with_room(row, question)
    if row.text("source_title") not in chunked:
        question = with_chunks(row, question)
    return with_whole_batches(row, question)


def with_chunks(row: Row, question: MeasuredTraining) -> MeasuredTraining:
    """The question with chunks of about two layers, as most runs of Megatron have, where nothing is said of chunks or schedule
    and layers and micro-batches divide."""
    plan, layers = question.plan, len(question.model.layers)
    pp, batches = int(plan.layout.pp), question.workload.global_batch // (int(plan.layout.dp) * int(plan.micro_batch))
    silent = not row.text("vpp") and plan.schedule == "1f1b" and "1f1b" not in row.text("notes").lower()
    if pp == 1 or not silent or not every()[plan.implementation].cuts or layers % pp or batches % pp:
        return question
    each = layers // pp
    count = min((n for n in range(1, each + 1) if not each % n), key=lambda n: abs(each / n - _LAYERS_A_CHUNK))
    if count == 1:
        return question
    plan = replace(plan, layout=replace(plan.layout, vpp=count), schedule="interleaved")
    return replace(question, plan=plan, assumed=(*question.assumed, f"{count} chunks a stage: not stated"))


def with_whole_batches(row: Row, question: MeasuredTraining) -> MeasuredTraining:
    """The question with the largest micro-batch that divides a rank's batch and fits, where the row states none and no pipeline
    asks for small ones.

    Of 257 public runs without a pipeline that state batches and accumulate, 153 took this one (60 %).
    """
    if row.text("micro_batch") or not row.text("global_batch") or int(question.plan.layout.pp) > 1:
        return question
    batch = question.workload.global_batch // int(question.plan.layout.dp)
    room = question.cluster.accelerator.runtime_total().value
    for size in (size for size in range(batch, 1, -1) if not batch % size):
        plan = replace(question.plan, micro_batch=size)
        needed = training_memory(question.model, question.cluster, plan, question.workload)
        if float(needed.device_bytes) <= room:
            told = tuple(note for note in question.assumed if not note.startswith("micro-batch"))
            note = f"micro-batch {size}: not stated; the largest that divides a rank's {batch} and fits"
            return replace(question, plan=plan, assumed=(*told, note))
    return question


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
