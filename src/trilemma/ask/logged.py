"""An answer beside the log of its run, by the readers of diagnosis: figures measured, the sum that failed, changes that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.estimate.estimate import Estimate, Verdict
from trilemma.estimate.measured import LogComparison
from trilemma.intervals import Interval

if TYPE_CHECKING:
    from trilemma.diagnosis.findings import Event, Reading


def beside_training_log(answer: Estimate, path: str) -> Estimate:
    """``answer`` with what a training log measured: speed and peak memory, or the allocation at which the run died.

    Raises `InputError` for a file that is no log of a training.
    """
    from trilemma.ask.expecting import expectation_of
    from trilemma.diagnosis.rules.expected_training import peak_of, tokens_per_s
    from trilemma.diagnosis.shortfall import ledger_words, remedies_of

    reading = _read(path)
    parts = {part.kind: part for part in reading.parts}
    log, failure = parts.get("training-log"), parts.get("out-of-memory")
    if log is None and failure is None:
        raise InputError(f"--log {shorten(path)} holds no step of a training and no failed allocation; give its log")
    measured: list[LogComparison] = []
    speed = answer.speed.tokens_per_s_per_gpu if answer.speed is not None else None
    if log is not None and speed is not None and (value := tokens_per_s(log.facts, answer)) is not None:
        measured.append(_compared("tokens_per_s_per_gpu", speed, value, path))
    if log is not None and "peak_memory_bytes" in log.facts:
        measured.append(_compared("peak_memory_bytes", peak_of(answer), log.facts["peak_memory_bytes"], path))
    answer = replace(answer, measured=tuple(measured))
    if failure is None:
        return answer
    event = failure.events[0]
    text = f"the log says so ({path}:{event.line}): {failed_sum(event)}; the ledger: {ledger_words(answer)}"
    fitting = remedies_of(expectation_of(answer, "the command", ()), event.values)
    verdict = Verdict(stage="oom_runtime", probability=1.0, reason=text, measured=True)
    return replace(answer, verdict=verdict, remedies=fitting or answer.remedies)


def with_failed_sum(answer: Estimate, path: str) -> Estimate:
    """``answer`` with the sum of the allocation that failed, where the log of its start holds one."""
    failure = next((part for part in _read(path).parts if part.kind == "out-of-memory"), None)
    if failure is None:
        return answer
    event = failure.events[0]
    told = PlanWarning(code="failed-sum", message=f"{path}:{event.line}: {failed_sum(event)}")
    return replace(answer, warnings=(told, *answer.warnings))


def failed_sum(event: Event) -> str:
    """The figures of an out-of-memory error as a sum that comes out at the card."""
    from trilemma.diagnosis.rules.failed_allocation import sum_words

    return sum_words(event.values)


def _read(path: str) -> Reading:
    from trilemma.diagnosis.reading import read

    reading = read(path)
    if reading.unreadable:
        raise InputError(f"--log {shorten(path)} cannot be read: {reading.why}")
    return reading


def _compared(name: str, figure: Interval, value: Any, where: str) -> LogComparison:
    return LogComparison(
        name=name, predicted=figure.value, low=figure.low, high=figure.high, measured=float(value), where=where
    )
