"""Coefficients where no kernel was measured: the formulas with the datasheet shares of the card's kind and no fine terms."""

from __future__ import annotations

from typing import Any

from trilemma.hardware.accelerator import Accelerator
from trilemma.timing.coefficients import Coefficients, coefficients_for
from trilemma.timing.kernels.collectives import RANKS
from trilemma.timing.kernels.fitted import KernelCoefficients, kernel_format, on_card
from trilemma.timing.kernels.formulas import COLLECTIVES, parameters_of

_MICRO = 1e6


def spec_sheet_kernel(accelerator: Accelerator, kernel: str, dtype: str) -> KernelCoefficients:
    """``kernel`` on ``accelerator`` from its datasheet alone (``data/coefficients/spec_sheet.toml``).

    Numbers that only a measurement can give are neutral: no tail of waves, no ramp, no cache faster than memory.
    """
    shares = coefficients_for(accelerator)
    stored = kernel_format(dtype)
    neutral = {parameter.name: 0.0 for parameter in parameters_of(kernel) if parameter.required}
    values: dict[str, Any]
    if kernel in COLLECTIVES:
        values = _collective(shares, kernel, linked=accelerator.link is not None)
    else:
        values = neutral | {"overlap_power": shares.overlap_power, "fixed_us": _fixed_us(shares, kernel)}
        values |= _rates(shares, kernel, stored.compute, stored.weight_bytes)
    numbers = {name: float(value) for name, value in values.items()}
    return on_card(accelerator, kernel=kernel, engine="spec sheet", dtype=dtype, values=numbers)


def _fixed_us(shares: Coefficients, kernel: str) -> Any:
    if kernel in ("gemm", "convolution", "convolution_decode", "mamba_convolution"):
        return shares.kernel_s * _MICRO
    return (shares.experts_kernel_s if kernel == "experts" else shares.attention_kernel_s) * _MICRO


def _rates(shares: Coefficients, kernel: str, compute: str, weight_bytes: float) -> dict[str, Any]:
    if kernel == "gemm":
        return {
            "compute_share": shares.matmul_share(compute),
            "stream_share": shares.stream_share(8 * weight_bytes),
            "cached_gain": 1.0,
            "l2_fraction": 1.0,
            "splits_k": 1.0,
        }
    if kernel == "experts":
        return {
            "compute_share": shares.matmul_share(compute) * shares.experts_share_of_matmul,
            "stream_share": shares.stream_share(8 * weight_bytes),
            "activation_passes": 1.0,
            "active_shrink": 1.0,
        }
    rates = {"compute_share": shares.prefill_attention, "stream_share": shares.cache_stream}
    if kernel in ("decode_attention", "mla_decode", "prefill_attention", "mla_prefill"):
        rates |= {"l2_share": shares.cache_stream, "l2_fraction": 1.0}
    if kernel in ("decode_attention", "mla_decode"):
        rates |= {"splits_context": 1.0, "widest_group": 1024.0}
    return rates


def _collective(shares: Coefficients, kernel: str, *, linked: bool) -> dict[str, Any]:
    if kernel == "all_reduce" and linked:
        floor_s = shares.one_shot_latency_s
    else:
        floor_s = shares.ring_latency_s if linked else shares.pcie_latency_s
    each = {
        "floor_us": floor_s * _MICRO,
        "link_share": shares.link_share if linked else shares.pcie_share,
        "ramp_mb": 0.0,
        "ramp_power": 1.0,
    }
    return {f"{name}_{ranks}": value for ranks in RANKS for name, value in each.items()}
