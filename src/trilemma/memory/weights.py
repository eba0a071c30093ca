"""Bytes of weights on one rank of a pipeline stage, for one layout or a table of layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.models.architecture import Model, ModelPart, Shard, Tensor
from trilemma.quantities import Numbers, ceil_div, round_up

#: Columns of a weight table: parts that live at one place of the pipeline, beside the decoder layers themselves.
_ENDS: tuple[ModelPart, ...] = ("embedding", "head", "vision", "mtp")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """Tensors that tensor and expert parallelism cut alike: bytes by part, and summed up to each decoder layer.

    ``upto[i]`` holds the bytes of layers before ``i``; ``ends`` those of embedding, head, vision and MTP. ``multiple`` is
    what a rank's units are padded to.
    """

    shard: Shard
    units: int
    experts: int
    multiple: int
    upto: NDArray[np.float64]
    ends: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightTable:
    """A model's tensors summed by how they are cut, so that many layouts cost one pass over a few rows."""

    layers: int
    tied: bool
    cuts: tuple[_Cut, ...]

    @property
    def total_bytes(self) -> float:
        """Bytes of every tensor, each counted once."""
        return float(sum(cut.upto[-1] + cut.ends.sum() for cut in self.cuts))

    @classmethod
    def of(
        cls, model: Model, *, extra: Iterable[Tensor] = (), expert_padding: Mapping[str, tuple[int, int]] | None = None
    ) -> WeightTable:
        """Sum the tensors of ``model``, and of ``extra`` ones that an engine makes of its own.

        ``expert_padding``: for experts stored in a format of that name, the multiples to which kernels pad the columns of
        one rank and the rows of the other side.
        """
        depth = len(model.layers)
        sums: dict[tuple[Shard, int, int, int], tuple[list[float], list[float]]] = {}
        stored: dict[tuple[int, tuple[int, ...]], int] = {}  # few formats and shapes, many tensors
        for tensor in (*model.tensors, *extra):
            columns, rows = (expert_padding or {}).get(tensor.format.name, (1, 1)) if tensor.experts else (1, 1)
            kind = (id(tensor.format), tensor.shape)
            if kind not in stored:
                stored[kind] = tensor.bytes
            n_bytes = stored[kind] * _row_padding(tensor, rows)
            key = (tensor.shard, tensor.shard_units, tensor.experts, columns)
            if key not in sums:
                sums[key] = ([0.0] * (depth + 1), [0.0] * len(_ENDS))
            by_layer, ends = sums[key]
            if tensor.part == "layers" and tensor.layer is not None and tensor.layer < depth:
                by_layer[tensor.layer + 1] += n_bytes
            elif tensor.part == "layers":
                ends[_ENDS.index("head")] += n_bytes
            else:
                ends[_ENDS.index(tensor.part)] += n_bytes
        cuts = tuple(
            _Cut(
                shard=shard,
                units=units,
                experts=experts,
                multiple=multiple,
                upto=np.cumsum(by_layer),
                ends=np.array(ends),
            )
            for (shard, units, experts, multiple), (by_layer, ends) in sums.items()
        )
        return cls(layers=depth, tied=model.tied_embeddings, cuts=cuts)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWeights:
    """Bytes on one rank: the language model itself, the vision tower and the multi-token-prediction layers."""

    text: Any
    vision: Any
    mtp: Any


def shard_share(
    *, shard: Shard, units: int, experts: int, tp: Numbers, ep: Numbers = 1, expert_tp: Numbers | None = None,
    vocab_padding: Numbers = 64,
    multiple: int = 1,
) -> Any:  # fmt: skip
    """The share of a tensor that one rank holds: ``ceil(units / tp) / units``.

    Units (heads, KV heads, columns) are never split, so ranks beyond the KV heads hold copies. Vocabulary rows are
    first padded to a multiple of ``vocab_padding``, a rank's units to ``multiple``. A stack of experts goes whole to
    ``ep`` ranks when that is over 1, else each expert is cut by ``expert_tp`` (default ``tp``). Scalars or arrays (plans,).

    Source: vLLM's layers/linear.py (KV heads are repeated) and layers/vocab_parallel_embedding.py.
    """
    if experts:
        whole = (
            ceil_div(experts, np.asarray(ep)) / experts * _cut(shard, units, np.ones_like(ep), vocab_padding, multiple)
        )
        inner = _cut(shard, units, tp if expert_tp is None else expert_tp, vocab_padding, multiple)
        return np.where(np.asarray(ep) > 1, whole, inner)
    return _cut(shard, units, tp, vocab_padding, multiple)


def _row_padding(tensor: Tensor, rows: int) -> float:
    """How much larger a matrix gets when its uncut side is padded to a multiple of ``rows``."""
    if rows <= 1 or len(tensor.shape) < 2 or tensor.shard not in ("column", "row"):
        return 1.0
    side = tensor.shape[-1] if tensor.shard == "column" else tensor.shape[-2]
    return float(round_up(side, rows) / side)


def _cut(shard: Shard, units: int, tp: Numbers, vocab_padding: Numbers, multiple: int) -> Any:
    if shard == "none":
        return np.ones(np.shape(tp))
    pieces = round_up(units, vocab_padding) if shard == "vocab" else units
    return round_up(ceil_div(pieces, np.asarray(tp)), multiple) / units


def rank_weights(
    table: WeightTable, *, start: Numbers, stop: Numbers, first: Any, last: Any, tp: Numbers, ep: Numbers = 1,
    expert_tp: Numbers | None = None, vocab_padding: int = 64,
) -> RankWeights:  # fmt: skip
    """Bytes of decoder layers ``start`` up to ``stop`` and of what stands at the ends of the pipeline.

    ``first`` and ``last`` say whether the stage holds the embedding (and the vision tower) or the head (and MTP layers).
    A tied matrix counts once where both ends meet and on each end where they do not. Scalars or arrays (plans,).
    """
    text: Any = 0.0
    vision: Any = 0.0
    mtp: Any = 0.0
    begins, ends = np.asarray(first, dtype=bool), np.asarray(last, dtype=bool)
    copied = ends & ~begins if table.tied else np.zeros(np.shape(ends), dtype=bool)
    for cut in table.cuts:
        share = shard_share(
            shard=cut.shard, units=cut.units, experts=cut.experts, tp=tp, ep=ep, expert_tp=expert_tp,
            vocab_padding=vocab_padding,
            multiple=cut.multiple,
        )  # fmt: skip
        embedding, head, tower, predictor = cut.ends
        layers = cut.upto[np.asarray(stop)] - cut.upto[np.asarray(start)]
        matrix = embedding if cut.shard == "vocab" else 0.0
        text = text + share * (layers + begins * embedding + ends * head + copied * matrix)
        if tower:
            vision = vision + share * tower * begins
        if predictor:
            mtp = mtp + share * predictor * ends
    return RankWeights(text=text, vision=vision, mtp=mtp)
