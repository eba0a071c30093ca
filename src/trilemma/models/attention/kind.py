"""What every kind of attention (or of layer in its place) says of itself: tensors, cache, work and traits.

A kind is one module of this package; the rooms that budget, time and search ask these methods and traits, never the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.cache_law import CacheLaw, joined
from trilemma.quantities import Numbers

if TYPE_CHECKING:
    from trilemma.models.blocks.builder import Builder
    from trilemma.models.blocks.decoder import LayerPlan

#: How an engine pages what a layer keeps: rows of one size a token, several caches side by side, one state a sequence.
Paging = Literal["rows", "parts", "state"]
#: What bounds the tokens looked back on, and how many they are.
LookBack = tuple[Literal["window", "chunk"], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelShape:
    """One decode kernel as tables of kernels know it: its name there, the layer in words, the arguments of its formula."""

    kernel: str
    what: str
    shapes: Mapping[str, float]
    head_dim: int | None = None
    windowed: bool = False
    #: Whether its time hangs on the format of the cache.
    reads_cache: bool = True


class AttentionKind(ABC):
    """Base of all kinds. Array arguments (``tp``, ``dcp``, ``context`` …) are scalars or arrays (plans,) that broadcast.

    A kind states every trait below that has no value here; one that is left out is refused when the class is made. A class of
    what several kinds share says that it ``is_kind`` itself: False.
    """

    __slots__ = ()

    #: How engines page what a layer keeps.
    pages: ClassVar[Paging]
    #: One latent for all heads, whole on every rank, which decode multiplies absorbed (MLA).
    is_latent: ClassVar[bool]
    #: Stored entries stand for several tokens, beside a window of the newest.
    is_compressed: ClassVar[bool]
    #: A constant state a sequence instead of a cache that grows.
    keeps_state: ClassVar[bool]
    #: Whether the tensors that autograd keeps were counted on real layers.
    saved_measured: ClassVar[bool]
    #: Kernels of one forward pass beside attention itself, projections fused as serving engines fuse them.
    serving_kernels: ClassVar[int]
    #: Kernels of one forward pass beside matrix products in training; measured launch times multiply this count.
    training_kernels: ClassVar[int]

    heads: int

    def __init_subclass__(cls) -> None:
        if not cls.__dict__.get("is_kind", True):
            return
        stated = (*AttentionKind.__annotations__,)
        missing = [name for name in stated if name != "heads" and not hasattr(cls, name)]
        if missing:
            raise TypeError(f"attention kind {cls.__name__} does not state {', '.join(missing)}")

    # ---- traits that hang on the numbers of a layer -----------------------------------------------------------------

    @property
    @abstractmethod
    def label(self) -> str:
        """The class under which errors are reported: "full", "sliding", "mla", "compressed", "recurrent", or a new word."""

    @property
    @abstractmethod
    def is_sparse(self) -> bool:
        """Whether an indexer chooses the tokens that are attended to."""

    @property
    def sparse_kernels(self) -> tuple[int, int]:
        """Small kernels and attention kernels that a sparse indexer adds to one forward pass of a layer.

        Three projections, a norm, rotations of queries and keys, their parts joined (2), queries quantised, weights of heads
        scaled, keys quantised and cached: 10; scores of all cached keys and the choice of the best run as long as an attention
        kernel each (vllm/model_executor/layers/sparse_attn_indexer.py, deepseek_v2.py: class Indexer).
        """
        return (10, 2) if self.is_sparse else (0, 0)

    @property
    @abstractmethod
    def cache_key(self) -> tuple[object, ...]:
        """Layers with equal keys keep caches of one size: query heads, sinks and the like do not matter to a cache."""

    @property
    @abstractmethod
    def cache_formula(self) -> str:
        """The cache law in words, with the numbers of this layer."""

    @property
    @abstractmethod
    def rotary_width(self) -> int:
        """Elements of a head that are rotated by position; 0 where none are."""

    @property
    @abstractmethod
    def value_width(self) -> int | None:
        """Elements of a value of one head; None where no values are summed up (states)."""

    @property
    def look_back(self) -> LookBack | None:
        """What bounds the cached tokens of the whole layer; None where all are kept."""
        return None

    @property
    def generates_nothing(self) -> bool:
        """Whether the layer reads a text whole, in both directions, so that no token can follow (encoders)."""
        return False

    @property
    def borrows_cache(self) -> bool:
        """Whether the layer reads the cache of another and keeps none of its own."""
        return False

    @property
    def cache_heads(self) -> int | None:
        """KV heads that tensor parallelism cuts; None where every rank holds a whole copy or no cache."""
        return None

    @property
    def key_share(self) -> float | None:
        """The share of a cached row that is keys; None where keys and values are not kept apart."""
        return None

    @property
    def state_heads(self) -> tuple[int, ...]:
        """Counts of heads by which tensor parallelism cuts a recurrent state."""
        return ()

    def with_states(self, name: str) -> Self:
        """The same layer with its recurrent state in the format ``name``, for engines that keep one of their own."""
        del name
        return self

    @property
    def latent_width(self) -> int:
        """Elements of the latent of one token, rope key included; 0 without latents."""
        return 0

    @property
    def partial_widths(self) -> tuple[int, int]:
        """Elements of a query and of a partial output of one head, as ranks exchange them that share out cached tokens; none
        where every rank reads all that a token looks at."""
        return 0, 0

    @property
    def unpacked_width(self) -> int:
        """Elements of a key without rope and a value of one head, unpacked from the latent; 0 without latents."""
        return 0

    # ---- tensors and cache --------------------------------------------------------------------------------------------

    @abstractmethod
    def add_tensors(self, add: Builder, hidden: int, layer: LayerPlan) -> None:
        """Add the parameters of one layer of this kind; ``layer`` holds the family's style."""

    @abstractmethod
    def cache_laws(
        self, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None, speculative_tokens: int = 0
    ) -> tuple[CacheLaw, ...]:
        """The caches of one layer on one rank, each by itself: attention first, then indexer, window and states.

        ``indexer_format``: None is the engine's FP8 with one FP32 scale a key.
        """

    def cache_law(
        self, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None, speculative_tokens: int = 0
    ) -> CacheLaw:
        """What one layer keeps on one rank of ``tp``, as one law; see `joined` and `cache_laws`."""
        return joined(
            self.cache_laws(
                tp=tp, kv_format=kv_format, indexer_format=indexer_format, speculative_tokens=speculative_tokens
            )
        )

    # ---- work: bytes and FLOPs of what hangs on the length of the context --------------------------------------------

    @abstractmethod
    def decode_flops(self, context: Any, *, tp: Numbers, dcp: Numbers) -> Any:
        """FLOPs of one decode token behind ``context`` cached ones on one rank; ``dcp`` ranks share the cached tokens."""

    @abstractmethod
    def prefill_flops(self, tokens: Any, cached: Any, *, tp: Numbers) -> Any:
        """FLOPs of ``tokens`` new tokens behind ``cached`` ones under the causal mask, on one rank."""

    def prefill_scores(self, tokens: Any, cached: Any, rows: Any, *, tp: Numbers) -> Any:
        """Scores that a pass of ``tokens`` in micro-batches of ``rows`` writes out on one rank where attention is not fused;
        the mask saves nothing within a micro-batch. 0 for kinds that have none."""
        del tokens, cached, rows, tp
        return 0.0

    @abstractmethod
    def unmasked_flops(self, seq: int) -> float:
        """FLOPs of one token of a sequence of ``seq`` where the causal mask saves nothing, all heads."""

    def decode_bytes(self, context: Any, *, tp: Numbers, kv_format: Format, dcp: Numbers) -> Any:
        """Bytes that one decode token reads of the caches of one layer, on one rank."""
        laws = self.cache_laws(tp=tp, kv_format=kv_format)
        return sum((self._read(law, context, dcp) for law in laws), start=np.float64(0.0))

    def _read(self, law: CacheLaw, context: Any, dcp: Numbers) -> Any:
        shared = 1 if law.shard == "none" else dcp
        return law.fixed_bytes + law.bytes_per_token * self._entries_read(law, context) / shared

    def _entries_read(self, law: CacheLaw, context: Any) -> Any:
        """Stored entries of one cache that a token reads."""
        return np.minimum(context, law.window if law.window is not None else np.inf) / law.stride

    def prefill_bytes(self, tokens: Any, cached: Any, *, tp: Numbers, kv_format: Format) -> Any:
        """Bytes of the caches of one layer on one rank: new entries are written once, all are read once."""
        laws = self.cache_laws(tp=tp, kv_format=kv_format)
        return sum(law.bytes_per_token * (2 * tokens + cached) / law.stride for law in laws if law.kind != "compressor")

    @abstractmethod
    def decode_kernel(self, *, batch: float, context: float, tp: int) -> KernelShape | None:
        """The kernel of one decode step for ``batch`` sequences at ``context`` tokens; None where no table has one."""

    @property
    @abstractmethod
    def pointwise_width(self) -> float:
        """Elements that rotary embedding, gates and convolutions touch per token in a forward pass."""

    @property
    @abstractmethod
    def exchanged_width(self) -> float:
        """Elements of keys and values of one token that ranks of a context-parallel group pass on."""


def causal_pairs(tokens: Any, cached: Any, window: int | None) -> Any:
    """Query-key pairs under the causal mask: ``tokens·cached + tokens²/2``; ``window`` bounds what one query sees."""
    full = tokens * cached + tokens * tokens / 2
    if window is None:
        return full
    growing = np.clip(window - cached, 0, tokens)  # queries that do not fill the window yet
    return growing * cached + growing * growing / 2 + (tokens - growing) * window
