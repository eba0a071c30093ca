"""The classes by which errors of training tables are reported, cells as they compare, and groups whose order counts."""

from __future__ import annotations

from trilemma.measured.tables import Row
from trilemma.measured.training.question import MeasuredTraining
from trilemma.timing.training_ladder import generation_of
from trilemma.timing.training_operators import training_work


def kind_of(question: MeasuredTraining) -> str:
    return "moe" if training_work(question.model, mtp=False).is_mixture else "dense"


def classes_of(row: Row, question: MeasuredTraining) -> dict[str, str]:
    """Class → value. ``kind_beside_llm_foundry`` leaves llm-foundry out, ``peft`` parts adapters from full training."""
    kind, framework = kind_of(question), question.framework.name
    classes = {
        "kind": kind,
        "framework": framework,
        "generation": generation_of(question.cluster.accelerator),
        "gpu": question.cluster.accelerator.id,
        "format": question.plan.recipe.matmul if question.plan.recipe.matmul != "same" else "bf16",
        "source": row.text("source_title")[:80],
        "peft": "adapters" if "PEFT" in row.text("framework") else "other",
        "nodes": "one" if question.cluster.nodes == 1 else "several",
    }
    if framework != "llm-foundry":
        classes["kind_beside_llm_foundry"] = kind
    if "simumax" not in row.text("source_title").lower():
        classes["kind_beside_simumax"] = kind
    memory_kind = row.text("memory_kind")
    if memory_kind:
        classes["memory_kind"] = memory_kind
    return classes


def resolved_cell(row: Row, question: MeasuredTraining, column: str) -> str:
    """A cell as it compares: models, GPUs and frameworks after resolution, so that two spellings of one thing are one."""
    match column:
        case "gpu":
            return question.cluster.accelerator.id
        case "model":
            return question.model.name
        case "framework":
            return question.framework.name
        case _:
            return row.text(column)


def order_group(row: Row, question: MeasuredTraining) -> str:
    """Rows whose order counts agree in source, model, GPU, count, precision and sequence."""
    layers = len(question.model.layers)
    cells = (row.text("source_title"), question.model.name, str(layers), question.cluster.accelerator.id)
    return " | ".join((*cells, row.text("gpus"), row.text("precision"), row.text("seq_len"), row.text("model")))


def config_of(row: Row) -> str:
    return row.text("config_id") or row.id
