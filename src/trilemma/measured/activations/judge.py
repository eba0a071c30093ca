"""Predicted against counted: what a Transformers model keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trilemma.measured.activations.saved_bytes import MeasuredSavings, measure_saved_bytes
from trilemma.measured.activations.small_models import shrink, text_part
from trilemma.memory.forward_saved import SavedRow, forward_saved
from trilemma.models.architecture import Model
from trilemma.models.read import model_from_config
from trilemma.plans.recipes import recipe
from trilemma.plans.training import Recompute, TrainingPlan

Dtype = Literal["bf16", "fp16", "fp32"]
AttentionName = Literal["sdpa", "eager"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationCheck:
    """One model, counted and predicted. Bytes are of one forward pass with its loss on one device."""

    model: Model
    measured: MeasuredSavings
    predicted: tuple[SavedRow, ...]
    micro_batch: int
    seq: int
    dtype: str
    attention: str
    checkpointed: bool
    fake: bool

    @property
    def measured_bytes(self) -> int:
        return self.measured.total_bytes

    @property
    def predicted_bytes(self) -> float:
        return sum(row.total_bytes for row in self.predicted)

    @property
    def error(self) -> float:
        """Predicted over measured minus one."""
        return self.predicted_bytes / self.measured_bytes - 1


def check_activations(
    config: Mapping[str, Any], *, micro_batch: int = 2, seq: int = 256, dtype: Dtype = "bf16",
    attention: AttentionName = "sdpa", checkpointed: bool = False, fake: bool = False, layers: int = 2, hidden: int = 256,
    name: str = "",
) -> ActivationCheck:  # fmt: skip
    """Count and predict. ``config`` is shrunk to ``layers`` and about ``hidden`` first, unless ``fake`` runs it whole."""
    used = text_part(dict(config)) if fake else shrink(dict(config), layers=layers, hidden=hidden)
    model = model_from_config(used, name=name or str(used.get("model_type")), source="given configuration")
    measured = measure_saved_bytes(
        used, micro_batch=micro_batch, seq=seq, dtype=dtype, attention=attention, checkpointed=checkpointed, fake=fake
    )
    plan = TrainingPlan(
        implementation="transformers",
        micro_batch=micro_batch,
        zero=0,
        sp=False,
        attention=attention,
        recipe=recipe("fp32" if dtype == "fp32" else "pure-bf16"),
        recompute=Recompute(mode="full" if checkpointed else "none"),
    )
    return ActivationCheck(
        model=model, measured=measured, predicted=forward_saved(model, plan, seq=seq), micro_batch=micro_batch, seq=seq,
        dtype=dtype, attention=attention, checkpointed=checkpointed, fake=fake,
    )  # fmt: skip
