"""What enters each product and the cache: magnitudes, outlier channels, and what low-precision formats lose of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trilemma.columns import column, document_of
from trilemma.formats import catalogue
from trilemma.precision.signals import TensorSignals, tensor_signals

if TYPE_CHECKING:
    import torch

    from trilemma.precision.emulation import Emulator

#: A channel is an outlier when its largest magnitude is so many times that of the median channel.
OUTLIER_RATIO = 20.0
#: Formats that are tried: dynamic scales of activations, and the unscaled FP8 of a cache without calibration.
ACTIVATION_FORMATS = ("fp8_tensor", "fp8_channel", "int8_channel", "nvfp4")
CACHE_FORMATS = ("fp8_e4m3", "fp8_e5m2", "fp8_channel", "int8_channel", "int4_channel")


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationStatistics:
    """One input of a product (``0.qkv``, ``3.down``, ``head``) or one half of the cache (``0.k``, ``0.v``).

    ``outlier_channels`` count channels whose largest magnitude is 20 times the median channel's or more; ``kept`` holds
    Transformer Engine's figures by format (per-token scales where the format has a scale per row).
    """

    name: str
    channels: int
    amax: float
    median_channel_amax: float
    outlier_channels: int
    kept: dict[str, TensorSignals] = field(metadata=column("formats"))

    def to_json(self) -> dict[str, Any]:
        return document_of(self, exact=True)


def measure_activations(emulator: Emulator) -> tuple[ActivationStatistics, ...]:
    """Statistics of every input and of the cache in full precision, layer by layer; nothing is kept but figures."""
    import torch

    from trilemma.precision.decoder import normed

    found: list[ActivationStatistics] = []

    def record(name: str, values: torch.Tensor) -> torch.Tensor:
        cache = name.endswith((".k", ".v"))
        found.append(_statistics(name, values, CACHE_FORMATS if cache else ACTIVATION_FORMATS))
        return values

    with torch.inference_mode():
        last = emulator.hidden(record=record)
        record("head", normed(last, emulator.tensor("model.norm.weight"), emulator.shape))
    return tuple(found)


def _statistics(name: str, values: torch.Tensor, formats: Sequence[str]) -> ActivationStatistics:
    from trilemma.precision.emulation import quantised

    flat = values.flatten(2) if values.ndim > 3 else values  # heads side by side are the channels of a cache
    flat = flat.reshape(-1, flat.shape[-1]).contiguous()
    per_channel = flat.abs().amax(0)
    median = float(per_channel.median())
    rows = values.reshape(-1, values.shape[-1]).contiguous()
    kept = {}
    for fmt in formats:
        stored = catalogue.get(fmt)
        limit = stored.max_value if stored.granularity == "none" else None
        kept[fmt] = tensor_signals(rows, quantised(rows, fmt), limit=limit)
    return ActivationStatistics(
        name=name,
        channels=flat.shape[-1],
        amax=float(per_channel.max()),
        median_channel_amax=median,
        outlier_channels=int((per_channel >= OUTLIER_RATIO * median).sum()) if median > 0 else 0,
        kept=kept,
    )
