"""The classes by which errors of serving memory are reported: what a row has in common with others."""

from __future__ import annotations

from functools import lru_cache

from trilemma.engines.base import StartUp
from trilemma.errors import InputError
from trilemma.measured.serving.memory.question import StartQuestion
from trilemma.measured.tables import Row
from trilemma.models.kinds import family_kind


def resolved_cell(row: Row, question: StartQuestion, column: str) -> str:
    """A cell as it compares: models, GPUs and engines after resolution, so that two spellings of one thing are one value."""
    match column:
        case "gpu":
            return question.accelerator.id
        case "model":
            return _catalogue_name(row.text("model"))
        case "engine":
            return question.engine
        case _:
            return row.text(column)


@lru_cache(maxsize=1024)
def _catalogue_name(name: str) -> str:
    from trilemma.models.resolve import resolve_name

    try:
        entry, scheme = resolve_name(name)
    except InputError:
        return name.lower()
    return f"{entry} {scheme.name}" if scheme is not None else entry


def classes_of(row: Row, question: StartQuestion, start: StartUp) -> dict[str, str]:
    """Class → value for one row."""
    return {
        "kind": family_kind(question.model),
        "hybrid": "yes" if question.model.is_hybrid else "no",
        "quantised": "no" if question.quantization == "none" else "yes",
        "weights": "stated by the row" if question.weights_unstated else "predicted",
        "utilisation": "stated" if question.utilisation_stated else "default",
        "program": question.engine,
        "engine": start.version.rpartition(".")[0] if start.version.count(".") > 1 else start.version,
        "version": "named" if question.version else "from date" if question.date else "unknown",
        "gpu": question.accelerator.id,
        "card": "stated by the row" if question.capacity_bytes is not None else "catalogue",
        "tp": str(question.layout.tp),
        "draft": question.draft.method if question.draft is not None else "none",
        "outcome": row.text("outcome") or "not stated",
    }


def config_of(question: StartQuestion) -> str:
    """One text per question, equal for rows that ask the same."""
    return repr(
        (
            question.engine,
            question.model.name,
            question.quantization,
            question.accelerator.id,
            question.layout,
            question.options,
            question.draft,
            question.version,
            question.date,
            question.capacity_bytes,
        )
    )
