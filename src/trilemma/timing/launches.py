"""How many kernels a forward pass launches, counted from what layers do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from trilemma.formats.computing import units as unit_of
from trilemma.formats.formats import Format
from trilemma.models.architecture import ExpertFfn, Layer, Tensor

#: Kernels of one feed-forward beside grouped experts: norm, gate-up, activation, down; with experts: norm, router,
#: choice, permutation, sum.
_QUANTISING_KERNELS = 2
_FFN_ROLES = ("ffn", "shared", "router", "experts")
_DENSE_FFN_KERNELS = 4
_EXPERT_FFN_KERNELS = 5
_SHARED_KERNELS = 4
_SHARED_GATE_KERNELS = 2


class UnitsOfFormats(Protocol):
    """Which units multiply a stored format on one card."""

    def of(self, stored: Format, /) -> str: ...


def kernels_of(layer: Layer) -> int:
    """Small kernels of one layer, attention itself and grouped experts apart."""
    count = 0
    if layer.mixer is not None:
        count += layer.mixer.serving_kernels + layer.mixer.sparse_kernels[0]
    if layer.ffn is not None:
        count += _EXPERT_FFN_KERNELS if isinstance(layer.ffn, ExpertFfn) else _DENSE_FFN_KERNELS
    return count


def quantising_kernels(tensors: Iterable[Tensor], units: UnitsOfFormats) -> int:
    """Kernels that bring activations into the format of matrix units narrower than 16 bits: one for what the first matrices of a
    mixer or a feed-forward read and one for what its last one does, wherever any of them is multiplied so."""
    narrow = {
        (tensor.layer, tensor.role.partition(".")[0] in _FFN_ROLES)
        for tensor in tensors
        if (unit := unit_of(units.of(tensor.format))) is not None and unit.bits < 16
    }
    return _QUANTISING_KERNELS * len(narrow)


def shared_kernels(tensors: Iterable[Tensor], units: UnitsOfFormats) -> int:
    """Kernels of the block that every token takes beside the experts that it is routed to, over all layers that have one: gate
    and up, activation, down, sum; one that brings what the last reads into a narrow format, and two of a gate of its own.

    Source: vllm/model_executor/models/qwen2_moe.py (Qwen2MoeSparseMoeBlock, shared_expert_gate), deepseek_v2.py.
    """
    count = 0
    for tensor in tensors:
        if tensor.role == "shared.down":
            unit = unit_of(units.of(tensor.format))
            count += _SHARED_KERNELS + (unit is not None and unit.bits < 16)
        elif tensor.role == "router" and tensor.shape[0] == 1:
            count += _SHARED_GATE_KERNELS
    return count


def norms_over_heads(tensors: Iterable[Tensor]) -> int:
    """Layers that normalise queries and keys over all heads at once: ranks that hold some of them sum their squares first.

    Source: vllm/model_executor/models/minimax_m2.py (MiniMaxText01RMSNormTP.forward_qk, one all-reduce of both).
    """
    return sum(tensor.role == "norm" and tensor.shard == "column" and "q_norm" in tensor.name for tensor in tensors)
