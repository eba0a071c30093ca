"""What is measured of one training configuration, and the one figure by which its speed is judged.

Rows of one run share ``config_id``. Time or tokens per second count before a derived TFLOP/s or MFU, and a TFLOP/s whose
convention is known before tokens per second printed in steps of 8 or 16. All speeds become tokens per second and GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trilemma.errors import shorten
from trilemma.measured.tables import Row, UnusableRow
from trilemma.measured.training.question import MeasuredTraining
from trilemma.timing.flops_conventions import model_flops_per_token
from trilemma.timing.roofline import peak_flops
from trilemma.timing.training_operators import training_work

SPEED = "tokens_per_s_per_gpu"
MEMORY = "peak_memory_gib"
_TIMES = (SPEED, "iteration_s", "tflops_per_gpu", "mfu")
_ROUNDED = "rounded"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSpeed:
    """One configuration's speed: ``value`` as printed in the unit of ``metric``, and tokens/s per GPU.

    ``per_token`` turns tokens per second into the printed unit (FLOPs a token and peaks put in); 0 for seconds a step.
    """

    row: Row
    metric: str
    value: float
    tokens_per_s_per_gpu: float


def scored_rows(rows: Sequence[Row]) -> dict[str, str]:
    """Row id of the speed that counts, by configuration."""
    found: dict[str, tuple[int, str]] = {}
    for row in rows:
        metric = row.text("measured_metric")
        if metric in _TIMES:
            config = row.text("config_id") or row.id
            rank = _rank(row, metric)
            if config not in found or rank < found[config][0]:
                found[config] = (rank, row.id)
    return {config: row_id for config, (_, row_id) in found.items()}


def _rank(row: Row, metric: str) -> int:
    if metric in ("tflops_per_gpu", "mfu"):
        known = convention_of(row.text("flops_convention")) is not None
        return (2 if metric == "tflops_per_gpu" else 4) + (10 if not known else 0)
    return 3 if row.text("value_kind") == _ROUNDED else _TIMES.index(metric)


def measured_speed(row: Row, question: MeasuredTraining) -> MeasuredSpeed:
    """The speed that ``row`` states. Raises `UnusableRow` where its unit cannot be turned into tokens per second."""
    metric = row.text("measured_metric")
    if metric not in _TIMES:
        raise UnusableRow(f"measured_metric {shorten(metric)!r} is not judged")
    value = row.number("value", low=1e-9, high=1e15)
    if value is None:
        raise UnusableRow("states no value")
    tokens = question.workload.seq * question.workload.global_batch / int(question.plan.layout.gpus)
    if metric == SPEED:
        return MeasuredSpeed(row=row, metric=metric, value=value, tokens_per_s_per_gpu=value)
    if metric == "iteration_s":
        return MeasuredSpeed(row=row, metric=metric, value=value, tokens_per_s_per_gpu=tokens / value)
    flops = flops_per_token(row, question)
    if metric == "tflops_per_gpu":
        return MeasuredSpeed(row=row, metric=metric, value=value, tokens_per_s_per_gpu=value * 1e12 / flops)
    if value > 1.0:
        raise UnusableRow(f"mfu {value:g} is no share; give 0 to 1")
    peak = peak_flops(question.cluster.accelerator, _mfu_format(row))
    return MeasuredSpeed(row=row, metric=metric, value=value, tokens_per_s_per_gpu=value * peak / flops)


def flops_per_token(row: Row, question: MeasuredTraining) -> float:
    """Model FLOPs of a token as the row's source counts them. Raises `UnusableRow` where it does not say how."""
    text = row.text("flops_convention")
    convention = convention_of(text)
    if convention is None:
        raise UnusableRow(f"FLOPs counted in a way that is not known: {text[:60] or 'not stated'}")
    work = training_work(question.model, mtp=question.plan.mtp)
    workload = question.workload
    frozen = workload.trains_adapters or "4n" in text.lower()
    return model_flops_per_token(
        work, workload.seq, convention, trains_adapters=frozen, tied=question.model.tied_embeddings
    )


def convention_of(text: str) -> str | None:
    """The convention that a ``flops_convention`` cell names; None for one that is unknown or known to miscount."""
    lowered = text.lower()
    if not lowered or lowered.startswith("unknown") or "undercount" in lowered:
        return None
    if "hardware" in lowered:
        return "hardware"
    if "no_attention" in lowered:
        return "weights"
    if "half" in lowered or "lora" in lowered:
        return "causal"
    if "embedding" in lowered and "incl" in lowered:
        return "full-embedding"
    return "full" if "full" in lowered else None


def _mfu_format(row: Row) -> str:
    """The peak that an MFU divides by: BF16, unless the convention says FP8."""
    return "fp8" if "fp8 peak" in row.text("flops_convention").lower() else "bf16"
