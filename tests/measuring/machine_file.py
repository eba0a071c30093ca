"""Measurements made up, of cards that are not here."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from trilemma.measuring.clock import Timing
from trilemma.measuring.device import Device
from trilemma.measuring.kernels import BenchFigure
from trilemma.measuring.suite import Measurement
from trilemma.quantities import GIB


def device(
    kind: Any = "cuda", name: str = "NVIDIA H100 80GB HBM3", gib: float = 79.1, capability: float | None = 9.0
) -> Device:
    return Device(
        torch=types.SimpleNamespace(__version__="2.13.0"), kind=kind, place="cuda:0" if kind != "cpu" else "cpu", name=name,
        memory_bytes=gib * GIB, compute_capability=capability, architecture="x86_64" if kind == "cpu" else "sm_90", threads=1,
    )  # fmt: skip


def measurement(values: Mapping[str, float], of: Device | None = None) -> Measurement:
    timing = Timing(median_s=1.0, low_s=0.98, high_s=1.02, repeats=9)
    figures = tuple(
        BenchFigure(figure=name, shape="a shape", value=value, timing=timing) for name, value in values.items()
    )
    return Measurement(device=of or device(), figures=figures, left_out=(), full=False)


PROCESSOR = {
    "copy_bytes_per_s": 40e9, "products_fp32_flops_per_s": 110e9, "products_bf16_flops_per_s": 500e9,
    "training_products_bf16_flops_per_s": 480e9, "stream_bf16_bytes_per_s": 16e9, "attention_bf16_flops_per_s": 50e9,
    "gather_bytes_per_s": 36e9, "launch_s": 2e-6, "pointwise_bf16_bytes_per_s": 9e9, "logits_bf16_bytes_per_s": 0.3e9,
    "update_bf16_bytes_per_s": 10e9, "host_decode_layer_bf16_s": 200e-6, "host_decode_step_bf16_s": 600e-6,
    "host_training_layer_bf16_s": 1e-3, "host_training_step_bf16_s": 1e-3,
}  # fmt: skip
