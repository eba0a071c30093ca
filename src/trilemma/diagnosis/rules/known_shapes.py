"""Kernels that fail for the shapes of a run, on its card and driver (data/diagnosis/known_bad.toml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.engine_start import KIND as START
from trilemma.diagnosis.readers.serving_load import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.diagnosis.rules.known_bad import driver_of, within
from trilemma.models.architecture import ExpertFfn
from trilemma.plans import Plan


def _judge(case: Case) -> Iterator[Finding]:
    driver = driver_of(case)
    told: set[str] = set()
    for kind in (START, KIND):
        for file, _ in case.parts(kind):
            expectation = case.expectations.get(file)
            if expectation is None or driver is None or file in told:
                continue
            told.add(file)
            for row in _rows():
                columns = _columns(row, expectation)
                card = expectation.answer.question.cluster.accelerator
                if columns is None or not within(driver[0], row["when"]["driver"]):
                    continue
                if within(f"{card.compute_capability or 0:g}", row["when"]["capability"]):
                    yield _finding(row, columns, file, expectation, driver[1])


def _columns(row: Mapping[str, Any], expectation: Expectation) -> int | None:
    """Columns of a rank's experts that are no multiple of what the kernel needs; None where they are, or it has none."""
    question = expectation.answer.question
    method = None if question.model.quantization is None else question.model.quantization.method
    if method != row["method"] or not isinstance(question.plan, Plan) or len(question.plan.pools) != 1:
        return None
    layout = question.plan.pool.layout
    split = 1 if int(layout.ep) > 1 else int(layout.tp)
    widths = {int(layer.ffn.intermediate) for layer in question.model.layers if isinstance(layer.ffn, ExpertFfn)}
    return next((width // split for width in widths if split > 1 and (width // split) % row["multiple"]), None)


def _finding(row: Mapping[str, Any], columns: int, file: str, expectation: Expectation, driver: Evidence) -> Finding:
    return Finding(
        id=f"version.{row['id']}", role="root", severity=row["severity"], claim=row["claim"],
        evidence=(driver, Evidence(file=file, value=expectation.said)), confidence="supported",
        expected=f"a multiple of {row['multiple']} columns a rank, or another driver", observed=f"{columns} columns a rank",
        fix=f"{row['fix']} ({row['source']})",
    )  # fmt: skip


@cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_data("diagnosis/known_bad.toml")["shape"])


RULE = Rule(needs=(START, KIND), judge=_judge)
