"""Layers that keep a constant state instead of a cache: Mamba-1 and -2, gated delta net, Kimi delta, lightning attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, assert_never

import numpy as np

from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.attention.kind import AttentionKind, KernelShape, Paging
from trilemma.models.attention.recurrent_tensors import gated_delta_net, kimi_delta, lightning, mamba1, mamba2
from trilemma.models.cache_law import CacheLaw, plain
from trilemma.quantities import Numbers, ceil_div

if TYPE_CHECKING:
    from trilemma.models.blocks.builder import Builder
    from trilemma.models.blocks.decoder import LayerPlan

#: Recurrent layers update their state once per token: decay, outer product, read-out: two FLOPs each per state element.
_STATE_FLOPS = 6
#: Recurrent prefill works in chunks and touches the state once per chunk (Mamba-2, Dao and Gu 2024, section 6).
_STATE_CHUNK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentState(AttentionKind):
    """A layer that keeps a constant state instead of a cache: Mamba-1 or -2, gated delta net, Kimi delta, lightning attention.

    Per sequence: a recurrent state of ``heads × state_rows × state_columns`` in ``state_format`` and a convolution tail of
    ``conv_channels × (conv_width − 1)`` in ``conv_format``. ``key_heads`` cuts q and k of linear attention under tensor
    parallelism and is the number of groups of Mamba-2 (the rank of the step size in Mamba-1, whose heads are channels).
    """

    pages: ClassVar[Paging] = "state"
    is_latent: ClassVar[bool] = False
    is_compressed: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = True
    saved_measured: ClassVar[bool] = False
    #: Norm, projections, convolution and gates.
    serving_kernels: ClassVar[int] = 7
    training_kernels: ClassVar[int] = 14

    kind: Literal["mamba1", "mamba2", "gated_delta_net", "kimi_delta", "lightning"]
    heads: int
    key_heads: int
    state_rows: int
    state_columns: int
    conv_channels: int
    conv_width: int
    state_format: str = "fp32"
    conv_format: str = "bf16"

    @property
    def label(self) -> str:
        return "recurrent"

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def cache_key(self) -> tuple[object, ...]:
        return ("state", self)

    @property
    def cache_formula(self) -> str:
        state = f"{self.heads}/tp x {self.state_rows} x {self.state_columns} x {self.state_format}"
        tail = f"{self.conv_channels}/tp x {max(self.conv_width - 1, 0)} x {self.conv_format}"
        return f"{state} + {tail} per sequence" if self.conv_channels else f"{state} per sequence"

    @property
    def rotary_width(self) -> int:
        return 0

    @property
    def value_width(self) -> None:
        return None

    @property
    def state_heads(self) -> tuple[int, ...]:
        return (self.heads, self.key_heads)

    def with_states(self, name: str) -> Self:
        return replace(self, state_format=name)

    def add_tensors(self, add: Builder, hidden: int, layer: LayerPlan) -> None:
        name, bias, conv_bias = layer.recurrent_name, layer.recurrent_bias, layer.conv_bias
        match self.kind:
            case "mamba1":
                mamba1(add, hidden, self, name=name, bias=bias, conv_bias=conv_bias)
            case "mamba2":
                mamba2(add, hidden, self, name=name, bias=bias, conv_bias=conv_bias, gated_norm=layer.gated_norm)
            case "gated_delta_net":
                gated_delta_net(add, hidden, self)
            case "kimi_delta":
                kimi_delta(add, hidden, self)
            case "lightning":
                lightning(add, hidden, self)
            case other:
                assert_never(other)

    def cache_laws(
        self, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None, speculative_tokens: int = 0
    ) -> tuple[CacheLaw, ...]:
        """A constant per sequence: the recurrent state and the tail of the short convolution, both cut by heads.

        ``heads/tp · rows · columns`` in ``state_format`` and ``channels/tp · (width − 1 + drafts)`` in ``conv_format``
        (vLLM: MambaStateShapeCalculator). Mamba-2 groups that do not divide by ``tp`` are copied until they do.
        """
        del kv_format, indexer_format  # states have formats of their own
        heads = ceil_div(self.heads, tp)
        rows = heads * self.state_rows * self.state_columns * catalogue.get(self.state_format).bits / 8
        channels: Any = self.conv_channels
        if self.kind == "mamba2":
            extra = np.where(np.asarray(self.key_heads) % tp == 0, 0, np.asarray(tp) - self.key_heads)
            channels = channels + 2 * np.maximum(extra, 0) * self.state_columns
        tail = ceil_div(channels, tp) * (max(self.conv_width - 1, 0) + (speculative_tokens if self.conv_width else 0))
        total = rows + tail * catalogue.get(self.conv_format).bits / 8
        return (CacheLaw(kind=self.kind, fixed_bytes=plain(total), shard="heads"),)

    def _read(self, law: CacheLaw, context: Any, dcp: Numbers) -> Any:
        """A state is read and written."""
        del dcp
        return 2.0 * law.fixed_bytes + 0.0 * context

    def decode_flops(self, context: Any, *, tp: Numbers, dcp: Numbers) -> Any:
        del dcp
        return 1.0 * _STATE_FLOPS * ceil_div(self.heads, tp) * self.state_rows * self.state_columns + 0.0 * context

    def prefill_bytes(self, tokens: Any, cached: Any, *, tp: Numbers, kv_format: Format) -> Any:
        del cached
        laws = self.cache_laws(tp=tp, kv_format=kv_format)
        return sum(2.0 * law.fixed_bytes for law in laws) * np.ceil(tokens / _STATE_CHUNK)

    def prefill_flops(self, tokens: Any, cached: Any, *, tp: Numbers) -> Any:
        del cached
        return 1.0 * _STATE_FLOPS * ceil_div(self.heads, tp) * self.state_rows * self.state_columns * tokens

    def unmasked_flops(self, seq: int) -> float:
        return float(self.prefill_flops(np.asarray(seq, dtype=float), 0.0, tp=1)) / seq

    def decode_kernel(self, *, batch: float, context: float, tp: int) -> KernelShape:
        del context
        shapes = {
            "batch": batch, "heads": float(ceil_div(self.heads, tp)),
            "key_dim": float(self.state_rows), "value_dim": float(self.state_columns),
        }  # fmt: skip
        return KernelShape(kernel="state_decode", what="recurrent state", shapes=shapes, reads_cache=False)

    @property
    def pointwise_width(self) -> float:
        return 4.0 * self.conv_channels + 5.0 * self.heads * self.state_rows

    @property
    def exchanged_width(self) -> float:
        return 0.0
