"""The kernels by name: which numbers each formula has."""

from __future__ import annotations

from collections.abc import Mapping

from trilemma.errors import UnknownName
from trilemma.timing.kernels import attention, collectives, experts, gemm, linear_state
from trilemma.timing.kernels.fitted import Parameter

#: Kernel name → parameters of its formula.
PARAMETERS: Mapping[str, tuple[Parameter, ...]] = {
    "gemm": gemm.PARAMETERS,
    "decode_attention": attention.DECODE_PARAMETERS,
    "prefill_attention": attention.PREFILL_PARAMETERS,
    "mla_decode": attention.DECODE_PARAMETERS,
    "mla_prefill": attention.PREFILL_PARAMETERS,
    "experts": experts.PARAMETERS,
    "state_decode": linear_state.PARAMETERS,
    "state_prefill": linear_state.PARAMETERS,
    "convolution": linear_state.PARAMETERS,
    "convolution_decode": linear_state.PARAMETERS,
    "mamba_convolution": linear_state.PARAMETERS,
    "all_reduce": collectives.PARAMETERS,
    "all_gather": collectives.PARAMETERS,
    "reduce_scatter": collectives.PARAMETERS,
    "all_to_all": collectives.PARAMETERS,
}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def parameters_of(kernel: str) -> tuple[Parameter, ...]:
    """The parameters of the formula of ``kernel``. Raises `UnknownName`."""
    if kernel not in PARAMETERS:
        raise UnknownName("kernel", kernel, PARAMETERS)
    return PARAMETERS[kernel]
