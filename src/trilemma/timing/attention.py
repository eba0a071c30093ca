"""What a layer's mixer does to past tokens: bytes read and FLOPs per rank, in decode and in prefill.

The projections around attention are matrix products like any other and are counted with the parameter tensors; here is
only what depends on the length of the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.attention import Mixer
from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorWork:
    """FLOPs and bytes of an operator on one rank; numbers or arrays with one entry per plan."""

    flops: Numbers = 0.0
    bytes: Numbers = 0.0

    def __add__(self, other: OperatorWork) -> OperatorWork:
        return OperatorWork(flops=self.flops + other.flops, bytes=self.bytes + other.bytes)

    def times(self, factor: Numbers) -> OperatorWork:
        return OperatorWork(flops=self.flops * factor, bytes=self.bytes * factor)


def decode_work(mixer: Mixer, *, context: Numbers, tp: Numbers, kv_format: Format, dcp: Numbers = 1) -> OperatorWork:
    """Work of one decode token of one sequence in one layer, on one tensor-parallel rank.

    ``context`` tokens lie in the cache, which is read by the law of the kind (`AttentionKind.cache_laws`): KV heads whole,
    windows and strides as kept, states read and written; FLOPs as the kind's own module says. ``dcp`` ranks share the cached
    tokens.
    """
    context = np.asarray(context, dtype=float)
    return OperatorWork(
        flops=mixer.decode_flops(context, tp=tp, dcp=dcp),
        bytes=mixer.decode_bytes(context, tp=tp, kv_format=kv_format, dcp=dcp),
    )


def prefill_work(mixer: Mixer, *, tokens: Numbers, cached: Numbers, tp: Numbers, kv_format: Format) -> OperatorWork:
    """Work of one prompt of ``tokens`` new tokens behind ``cached`` ones, in one layer, on one rank.

    Causal attention: token i looks back on ``cached + i`` tokens, so ``tokens·cached + tokens²/2`` pairs, cut by windows
    and chunks. FLOPs per pair are ``2·heads·(k_dim + v_dim)`` (Dao 2023, section 4.1, halved for the causal mask); MLA
    runs unabsorbed with keys of ``nope + rope`` and values of ``v_dim``. The cache is written once and read once.
    """
    tokens, cached = np.asarray(tokens, dtype=float), np.asarray(cached, dtype=float)
    return OperatorWork(
        flops=mixer.prefill_flops(tokens, cached, tp=tp),
        bytes=mixer.prefill_bytes(tokens, cached, tp=tp, kv_format=kv_format),
    )
