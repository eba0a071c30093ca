"""Seconds of single kernels: pure functions of shapes, with numbers fitted to measured tables and a ladder of stand-ins."""

from trilemma.timing.kernels.attention import decode_attention_s, prefill_attention_s
from trilemma.timing.kernels.collectives import collective_s
from trilemma.timing.kernels.experts import active_experts, experts_s
from trilemma.timing.kernels.fitted import KernelCoefficients, Parameter, kernel_formats
from trilemma.timing.kernels.gemm import gemm_s
from trilemma.timing.kernels.ladder import Rung, kernel_coefficients, measured_cards
from trilemma.timing.kernels.linear_state import convolution_s, state_decode_s, state_prefill_s
from trilemma.timing.kernels.mla import mla_decode_s, mla_prefill_s

__all__ = [
    "KernelCoefficients",
    "Parameter",
    "Rung",
    "active_experts",
    "collective_s",
    "convolution_s",
    "decode_attention_s",
    "experts_s",
    "gemm_s",
    "kernel_coefficients",
    "kernel_formats",
    "measured_cards",
    "mla_decode_s",
    "mla_prefill_s",
    "prefill_attention_s",
    "state_decode_s",
    "state_prefill_s",
]
