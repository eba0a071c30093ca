"""Kinds of attention, one module each; `Mixer` is any of them.

To add one: its module here, its name below, and what autograd keeps of it (`trilemma.memory.saved_tensors`).
"""

from __future__ import annotations

from typing import TypeAlias

from trilemma.models.attention.compressed import CompressedAttention, CompressedStyle
from trilemma.models.attention.kind import AttentionKind, KernelShape
from trilemma.models.attention.latent import LatentAttention
from trilemma.models.attention.recurrent import RecurrentState
from trilemma.models.attention.softmax import AttentionStyle, OutputGate, QkNorm, SoftmaxAttention

Mixer: TypeAlias = SoftmaxAttention | LatentAttention | CompressedAttention | RecurrentState

__all__ = [
    "AttentionKind",
    "AttentionStyle",
    "CompressedAttention",
    "CompressedStyle",
    "KernelShape",
    "LatentAttention",
    "Mixer",
    "OutputGate",
    "QkNorm",
    "RecurrentState",
    "SoftmaxAttention",
]
