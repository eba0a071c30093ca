"""What one forward pass multiplies and reads: a model's tensors and mixers summed into a small table of work.

The table is made once per model and card; the time of any number of plans then takes a few array operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import ExpertFfn, Layer, Model, Shard, Tensor
from trilemma.models.attention import Mixer
from trilemma.models.identity import ByIdentity
from trilemma.quantities import Numbers, ceil_div
from trilemma.timing.attention import OperatorWork
from trilemma.timing.launches import kernels_of, norms_over_heads, quantising_kernels, shared_kernels

if TYPE_CHECKING:
    from trilemma.timing.host_weights import HostWork
    from trilemma.timing.machine import Machine

_ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Products:
    """Dense matrix products that share format and cut, summed over layers.

    ``elements`` weights of ``bytes`` stored bytes; ``inputs`` and ``outputs`` are the summed widths of what they read and
    write per token. ``units`` as in `Tensor.shard_units`.
    """

    computed_in: str
    bits: float
    shard: Shard
    units: int
    elements: int
    bytes: int
    inputs: int
    outputs: int

    def share(self, tp: Numbers) -> Any:
        """The part of the weights that the fullest rank of ``tp`` holds; pieces are never split."""
        return 1.0 if self.shard == "none" else ceil_div(self.units, tp) / self.units

    def work(self, rows: Numbers, tp: Numbers) -> OperatorWork:
        """FLOPs and bytes for ``rows`` tokens on one rank: two FLOPs per weight and token, weights and activations once."""
        share = self.share(tp)
        outputs = self.outputs * (share if self.shard in ("column", "vocab") else 1.0)
        inputs = self.inputs * (share if self.shard == "row" else 1.0)
        traffic = self.bytes * share + _ACTIVATION_BYTES * rows * (inputs + outputs)
        return OperatorWork(flops=2.0 * rows * self.elements * share, bytes=traffic)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertProducts:
    """Grouped products of ``layers`` mixture layers with equal experts; ``elements`` and ``bytes`` are of one layer's stack.

    ``inputs`` and ``outputs`` are the widths that one routed token reads and writes.
    """

    computed_in: str
    bits: float
    layers: int
    experts: int
    top_k: int
    elements: int
    bytes: int
    inputs: int
    outputs: int

    def active(self, tokens: Numbers, *, evenness: Numbers = 1.0) -> Any:
        """Distinct experts that ``tokens`` tokens wake: ``E(1 − (1 − k/E)^(evenness · tokens))``.

        With ``evenness`` 1 routing is uniform and independent, an upper bound; real routing is skewed and wakes fewer. One
        token always wakes its ``k``.
        """
        share = min(self.top_k / self.experts, 1.0)
        missed = np.power(1.0 - share, np.maximum(np.asarray(tokens, dtype=float) * evenness, 1.0))
        return self.experts * (1.0 - missed)

    def work(
        self, tokens: Numbers, ranks: Numbers, *, tile_rows: Numbers, evenness: Numbers = 1.0, row_by_row: Any = False
    ) -> OperatorWork:
        """FLOPs and bytes of all layers on one of ``ranks``, over which experts are spread whole or each is split.

        Rows of one expert are padded to ``tile_rows``; where kernels work ``row_by_row`` none are, and each row reads its
        expert for itself.
        """
        active = self.active(tokens, evenness=evenness)
        routed = np.asarray(tokens, dtype=float) * self.top_k
        padded = active * np.ceil(routed / active / tile_rows) * tile_rows
        if np.any(row_by_row):
            active, padded = np.where(row_by_row, routed, active), np.where(row_by_row, routed, padded)
        one = self.elements / self.experts
        traffic = self.bytes * active / self.experts + _ACTIVATION_BYTES * routed * (self.inputs + self.outputs)
        return OperatorWork(flops=self.layers * 2.0 * padded * one / ranks, bytes=self.layers * traffic / ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelWork:
    """A model on one kind of card, ready for timing.

    ``mixers`` counts layers by mixer; ``mixer_layers``, ``dense_ffn_layers`` and ``expert_ffn_layers`` those after which an
    engine must join partial sums, ``norms_over_heads`` those inside which it joins sums of squares as well. ``computed_in`` says
    in words which formats meet which units. ``host`` is what lies outside the cards, None where nothing does; ``beside`` what
    cards of other kinds hold, each with its machine.
    """

    hidden: int
    vocab: int
    layers: int
    dense: tuple[Products, ...]
    head: tuple[Products, ...]
    experts: tuple[ExpertProducts, ...]
    mixers: tuple[tuple[Mixer, int], ...]
    mixer_layers: int
    dense_ffn_layers: int
    expert_ffn_layers: int
    kernels: int
    norms_over_heads: int
    computed_in: tuple[str, ...]
    host: HostWork | None = None
    beside: tuple[tuple[ModelWork, Machine], ...] = ()

    @property
    def attention_kernels(self) -> int:
        """Kernels as long as one of attention: one a layer, and those of sparse indexers."""
        return sum(count * (1 + mixer.sparse_kernels[1]) for mixer, count in self.mixers)

    def flops_per_token(self) -> float:
        """FLOPs of one token through the active parameters, attention to past tokens apart: ``2 · active``."""
        dense = sum(2.0 * p.elements for p in (*self.dense, *self.head))
        routed = sum(2.0 * e.layers * e.elements * min(e.top_k / e.experts, 1.0) for e in self.experts)
        outside = [self.host.work] if self.host is not None else []
        elsewhere = sum(work.flops_per_token() for work in (*outside, *(work for work, _ in self.beside)))
        return dense + routed + elsewhere


def model_work(model: Model, accelerator: Accelerator) -> ModelWork:
    """Sum ``model``'s tensors into products by format, cut and part. Vision towers and MTP layers take no part here."""
    return _model_work(ByIdentity(model), computed_formats(model, accelerator))


def computed_formats(model: Model, accelerator: Accelerator) -> tuple[tuple[Format, str], ...]:
    """Each format that ``model``'s tensors are stored in, with that of the units of ``accelerator`` that multiply it.

    Source: ``data/formats.toml``, ``[units]``; one pair a format, whatever their number of bytes.
    """
    bits = activation_bits(model)
    return tuple(
        (stored, stored.computes_in(accelerator, activation_bits=bits)) for stored in _stored_formats(ByIdentity(model))
    )


@lru_cache(maxsize=64)
def _stored_formats(same: ByIdentity) -> tuple[Format, ...]:
    model = same.value
    assert isinstance(model, Model)
    return tuple(dict.fromkeys(tensor.format for tensor in model.tensors))


@lru_cache(maxsize=64)
def _model_work(same: ByIdentity, computed_in: tuple[tuple[Format, str], ...]) -> ModelWork:
    """The work where formats are multiplied so: cards of a generation are alike in it."""
    model = same.value
    assert isinstance(model, Model)
    layers = [tensor for tensor in model.of_part("layers") if len(tensor.shape) >= 2]
    head = [tensor for tensor in model.of_part("head") if len(tensor.shape) >= 2]
    if model.tied_embeddings or not head:
        head = [tensor for tensor in model.of_part("embedding") if len(tensor.shape) == 2][:1]
    units = MultiplyingUnits(dict(computed_in))
    kinds = [(layer.mixer, layer.ffn) for layer in model.layers]
    experts = [tensor for tensor in layers if tensor.experts]
    dense = products_of((tensor for tensor in layers if not tensor.experts), units)
    head_products = products_of(head, units)
    expert_products = expert_products_of(experts, {layer.index: layer for layer in model.layers}, units)
    return ModelWork(
        hidden=model.hidden,
        vocab=model.vocab,
        layers=len(model.layers),
        dense=dense,
        head=head_products,
        experts=expert_products,
        mixers=tuple(model.mixers.items()),
        mixer_layers=sum(mixer is not None for mixer, _ in kinds),
        dense_ffn_layers=sum(ffn is not None and not isinstance(ffn, ExpertFfn) for _, ffn in kinds),
        expert_ffn_layers=sum(isinstance(ffn, ExpertFfn) for _, ffn in kinds),
        kernels=sum(kernels_of(layer) for layer in model.layers)
        + quantising_kernels(layers, units)
        + shared_kernels(layers, units),
        norms_over_heads=norms_over_heads(model.of_part("layers")),
        computed_in=tuple(
            sorted(f"{stored.name} weights compute in {computed}" for stored, computed in units.met.items())
        ),
    )


def activation_bits(model: Model) -> int | None:
    """Bits of what weights are multiplied with, where the checkpoint says so or the model is held in FP32."""
    if model.quantization is not None:
        return model.quantization.activation_bits
    return 32 if model.dtype.bits >= 32 else None


class MultiplyingUnits:
    """Which units multiply a format on one card, and which formats were met: a model has thousands of tensors and few formats."""

    def __init__(self, computed_in: Mapping[Format, str]) -> None:
        self.computed_in = computed_in
        self.met: dict[Format, str] = {}
        self._sizes: dict[tuple[tuple[int, ...], Format], int] = {}

    def of(self, stored: Format) -> str:
        if stored not in self.met:
            self.met[stored] = self.computed_in[stored]
        return self.met[stored]

    def bytes(self, tensor: Tensor) -> int:
        key = (tensor.shape, tensor.format)
        if key not in self._sizes:
            self._sizes[key] = tensor.bytes
        return self._sizes[key]


class StoredFormats(Protocol):
    """How tensors are multiplied and held: the compute format of a stored format, and the bytes of a tensor."""

    def of(self, stored: Format, /) -> str: ...

    def bytes(self, tensor: Tensor, /) -> int: ...


def products_of(tensors: Iterable[Tensor], units: StoredFormats) -> tuple[Products, ...]:
    """Dense matrices joined by format and cut; what fused matrices read in common counts once."""
    sums: dict[tuple[str, float, Shard, int], list[int]] = {}
    read: set[tuple[int | None, str, int]] = set()
    for tensor in tensors:
        computed_in = units.of(tensor.format)
        key = (computed_in, tensor.format.bits, tensor.shard, max(tensor.shard_units, 1))
        row = sums.setdefault(key, [0, 0, 0, 0])
        rows, columns = tensor.shape[-2:]
        matrices = tensor.elements // (rows * columns)
        # q, k and v, and gate and up, are fused: what they have in common is read once
        block = (tensor.layer, tensor.role.partition(".")[0], columns)
        inputs = 0 if tensor.shard == "column" and block in read else matrices * columns
        if tensor.shard == "column":
            read.add(block)
        for at, size in enumerate((tensor.elements, units.bytes(tensor), inputs, matrices * rows)):
            row[at] += size
    return tuple(
        Products(
            computed_in=computed_in, bits=stored, shard=shard, units=pieces,
            elements=row[0], bytes=row[1], inputs=row[2], outputs=row[3],
        )
        for (computed_in, stored, shard, pieces), row in sums.items()
    )  # fmt: skip


def expert_products_of(
    tensors: Iterable[Tensor], layers: Mapping[int, Layer], units: StoredFormats
) -> tuple[ExpertProducts, ...]:
    per_layer: dict[tuple[int | None, str, float, int, int], list[int]] = {}
    for tensor in tensors:
        layer = layers.get(tensor.layer) if tensor.layer is not None else None
        top_k = layer.ffn.top_k if layer is not None and isinstance(layer.ffn, ExpertFfn) else tensor.experts
        computed_in = units.of(tensor.format)
        key = (tensor.layer, computed_in, tensor.format.bits, tensor.experts, top_k)
        row = per_layer.setdefault(key, [0, 0, 0, 0])
        widths = tensor.shape[-2:] if len(tensor.shape) >= 3 else (0, 0)
        for at, size in enumerate((tensor.elements, units.bytes(tensor), widths[1], widths[0])):
            row[at] += size
    counts: dict[tuple[str, float, int, int, int, int, int, int], int] = {}
    for (_, computed_in, stored, experts, top_k), row in per_layer.items():
        alike = (computed_in, stored, experts, top_k, row[0], row[1], row[2], row[3])
        counts[alike] = counts.get(alike, 0) + 1
    return tuple(
        ExpertProducts(
            computed_in=alike[0], bits=alike[1], layers=count, experts=alike[2], top_k=alike[3],
            elements=alike[4], bytes=alike[5], inputs=alike[6], outputs=alike[7],
        )
        for alike, count in counts.items()
    )  # fmt: skip
