"""Training tables: seconds a step, tokens per second, and peak memory of published runs, against what we say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, with_flags
from trilemma.estimate.training import estimate_training
from trilemma.measured.judgement import FigureComparison, Judgement, StartVerdict
from trilemma.measured.tables import Row, UnusableRow
from trilemma.measured.training.baseline import BaselineRun, baseline
from trilemma.measured.training.classes import classes_of, config_of, kind_of, order_group, resolved_cell
from trilemma.measured.training.figures import (
    MEMORY,
    MeasuredSpeed,
    measured_speed,
    scored_rows,
)
from trilemma.measured.training.question import MeasuredTraining, read_training_question
from trilemma.measured.training.refit import UNSTATED, refit
from trilemma.measured.training.room import as_it_ran, states_chunks
from trilemma.memory.training import training_memory
from trilemma.quantities import GIB
from trilemma.question import Question
from trilemma.timing.flops_conventions import model_flops_per_token
from trilemma.timing.training_intervals import step_spread
from trilemma.timing.training_operators import training_work
from trilemma.timing.training_step import training_step

__all__ = ["METRICS", "judge"]

#: ``speed`` holds one figure per configuration, whatever it was printed in, as tokens per second and GPU.
METRICS = (
    "speed", "baseline_speed", "tokens_per_s_per_gpu", "iteration_s", "tflops_per_gpu", "mfu", "peak_memory_gib",
    "allocated_gib", "reserved_gib",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    row: Row
    question: MeasuredTraining
    speed: MeasuredSpeed | None = None
    counts: bool = True


def judge(
    rows: Sequence[Row],
    *,
    models_dir: str | Path | None = None,
    holdout: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Judgement], dict[str, Any]]:
    """Judge every row; the second value is the ``holdout`` part of the document. A row never ends the run.

    With ``holdout`` every speed is judged by coefficients refitted without the rows that share its values in these columns;
    memory has no coefficients fitted here and is judged as it is.
    """
    chosen = set(scored_rows(rows).values())
    chunked = states_chunks(rows)
    read = [_read(row, chosen, chunked, models_dir) for row in rows]
    scored = {
        i: (one.question, one.speed)
        for i, one in enumerate(read)
        if isinstance(one, _Read) and one.speed and one.counts
    }
    looked_up = baseline([_entry(*scored[i]) for i in scored])
    seconds, document = refit(scored, holdout) if holdout else ({}, {})
    of_config = {config_of(rows[index]): step_s for index, step_s in seconds.items()}
    judgements = []
    for index, (row, one) in enumerate(zip(rows, read, strict=True)):
        judgements.append(_judged(row, one, seconds.get(index, of_config.get(config_of(row))), looked_up))
        if progress is not None:
            progress(index + 1)
    return judgements, document


def _read(row: Row, chosen: set[str], chunked: set[str], models_dir: str | Path | None) -> _Read | str:
    try:
        question = as_it_ran(row, read_training_question(row, models_dir), chunked)
        speed = measured_speed(row, question) if row.text("measured_metric") != MEMORY else None
        return _Read(row=row, question=question, speed=speed, counts=row.id in chosen)
    except (UnusableRow, InputError) as error:
        return with_flags(error)


def _entry(question: MeasuredTraining, speed: MeasuredSpeed) -> BaselineRun:
    work = training_work(question.model, mtp=question.plan.mtp)
    card, framework = question.cluster.accelerator.id, question.framework.name
    precision = speed.row.text("precision")
    return BaselineRun(
        config=config_of(speed.row),
        keys=((card, framework, precision, speed.row.text("model")), (card, framework, precision), (card,)),
        flops_per_token=model_flops_per_token(
            work, question.workload.seq, trains_adapters=question.workload.trains_adapters
        ),
        tokens_per_s_per_gpu=speed.tokens_per_s_per_gpu,
    )


def _judged(row: Row, one: _Read | str, held_out_s: tuple[float, float, float] | None, looked_up: Any) -> Judgement:
    if isinstance(one, str):
        return Judgement(row_id=row.id, cells=row.cells, skipped=one, config=config_of(row))
    question = one.question
    try:
        comparisons = _memory(row, question) if one.speed is None else _speed(one, held_out_s, looked_up)
        start = _ran(question) if one.speed is None else None
    except (UnusableRow, InputError) as error:
        return Judgement(row_id=row.id, cells=row.cells, skipped=with_flags(error), config=config_of(row))
    return Judgement(
        row_id=row.id,
        cells={column: resolved_cell(row, question, column) for column in row.cells},
        classes=classes_of(row, question),
        comparisons=tuple(comparisons),
        start=start,
        config=config_of(row),
        order_group=order_group(row, question) if one.speed is not None and one.counts else "",
        order_metric="speed",
        assumed=question.assumed,
    )


def _speed(
    one: _Read, held_out_s: tuple[float, float, float] | None, looked_up: Mapping[str, float]
) -> list[FigureComparison]:
    """Figures of one run, ``speed`` once a configuration; ``held_out_s`` are seconds a step, and their range, where it was left
    out of both."""
    question, speed = one.question, one.speed
    assert speed is not None
    tokens = question.workload.seq * question.workload.global_batch / int(question.plan.layout.gpus)
    if held_out_s is None:
        step_s = float(_step_s(question))
        mixture = kind_of(question) == "moe"
        spread = step_spread(question.framework, question.cluster.accelerator, mixture=mixture)
        low, high = spread[0] * step_s, spread[1] * step_s
    else:
        step_s, low, high = held_out_s
    measured = speed.tokens_per_s_per_gpu
    fastest, slowest = tokens / low, tokens / high
    found = []
    if one.counts:
        found += [
            FigureComparison(metric="speed", predicted=tokens / step_s, measured=measured, low=slowest, high=fastest)
        ]
    if one.counts and config_of(one.row) in looked_up:
        found.append(
            FigureComparison(metric="baseline_speed", predicted=looked_up[config_of(one.row)], measured=measured)
        )
    if speed.metric == "iteration_s":
        return [
            *found,
            FigureComparison(metric="iteration_s", predicted=step_s, measured=speed.value, low=low, high=high),
        ]
    unit = speed.value / measured
    return [
        *found,
        FigureComparison(
            metric=speed.metric,
            predicted=tokens / step_s * unit,
            measured=speed.value,
            low=slowest * unit,
            high=fastest * unit,
        ),
    ]


def _step_s(question: MeasuredTraining) -> Any:
    return training_step(
        question.model,
        question.cluster,
        question.plan,
        question.workload,
        framework=question.framework,
        era=question.era or UNSTATED,
    ).step_s


def _ran(question: MeasuredTraining) -> StartVerdict:
    """The verdict on a run that has a measured peak, and so did fit."""
    answer = estimate_training(
        Question(
            model=question.model, cluster=question.cluster, workload=question.workload, plan=question.plan
        )
    )  # fmt: skip
    sure, fits = answer.verdict.probability, answer.verdict.stage == "ok"
    return StartVerdict(
        predicted=fits,
        started=True,
        stage=answer.verdict.stage,
        outcome="ok",
        probability_ok=sure if fits else 1 - sure,
    )


#: How a table names what a profiler reads, and what we predict for it.
_MEMORY_KINDS = {"allocated": "allocated", "active": "allocated", "reserved": "reserved", "": "allocated"}


def _memory(row: Row, question: MeasuredTraining) -> list[FigureComparison]:
    measured = row.number("value", low=1e-3, high=1e5)
    if measured is None:
        raise UnusableRow("states no value")
    stated = row.text("memory_kind").lower()
    kind = _MEMORY_KINDS.get(stated, "allocated")
    memory = training_memory(question.model, question.cluster, question.plan, question.workload)
    interval = memory.reserved if kind == "reserved" else memory.allocated
    figures = {
        "predicted": interval.value / GIB,
        "measured": measured,
        "low": interval.low / GIB,
        "high": interval.high / GIB,
    }
    named = [FigureComparison(metric=MEMORY, **figures)]
    return [*named, FigureComparison(metric=f"{kind}_gib", **figures)] if stated in ("allocated", "reserved") else named
