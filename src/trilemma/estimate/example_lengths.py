"""What lengths of examples that nobody stated leave open: seconds of attention where they are packed, memory where a sequence is
the most that they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, hypot, log

from trilemma.errors import PlanWarning
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.memory.training import TrainingMemory, training_memory
from trilemma.quantities import show_gib
from trilemma.question import TrainingQuestion
from trilemma.workloads import SHORT_EXAMPLE, TrainingWorkload


def with_documents(
    question: TrainingQuestion, seconds: Callable[[TrainingWorkload], float], low: float, high: float
) -> tuple[float, float, tuple[PlanWarning, ...]]:
    """Factors ``low`` and ``high`` of a step with what the lengths of packed examples leave open, and what says so.

    ``seconds`` of a step by workload. The two doubts are independent: their logarithms add as squares.
    """
    load = question.workload
    if load.examples != "packed" or load.document is not None:
        return low, high, ()
    value, short, long = (seconds(load.with_documents(quantile)) for quantile in (0.5, 0.05, 0.95))
    text = (
        f"examples packed to {load.seq:,} tokens are taken as {load.attended:,} long, over which attention reaches: a step of"
        f" {short:.3g} s where they are {load.with_documents(0.05).attended:,}, of {long:.3g} s where they fill it"
    )
    warning = PlanWarning(code="packed-examples", message=text)
    return exp(-hypot(log(low), log(value / short))), exp(hypot(log(high), log(long / value))), (warning,)


def of_capped_lengths(
    question: TrainingQuestion, memory: TrainingMemory, cluster: Cluster, capacity: Interval
) -> tuple[PlanWarning, ...]:
    """What doubts a no of the card where the sequence is the most that an example has: short ones would fit. None where they
    would not."""
    load = question.workload
    share = SHORT_EXAMPLE / load.seq
    if load.examples != "capped" or share >= 1 or float(memory.device_bytes) <= capacity.value:
        return ()
    short = training_memory(question.model, cluster, question.plan, replace(load, filling=load.filling * share))
    need = float(short.device_bytes)
    if need > capacity.value:
        return ()
    text = (
        f"{load.seq:,} tokens are the most that an example may have; where none is longer than {SHORT_EXAMPLE} the peak is"
        f" {show_gib(need)} GiB"
    )
    return (PlanWarning(code="length-is-a-cap", message=text),)
