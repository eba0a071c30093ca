"""Room that serving engines reserve for adapters before any is loaded: as many slots as may be used in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trilemma.formats.formats import Format
from trilemma.memory.adapters import is_linear, is_target_name, low_rank
from trilemma.memory.weights import RankWeights, WeightTable, rank_weights
from trilemma.models.architecture import Model, Tensor
from trilemma.quantities import Numbers

#: Names of fused modules in engines → those of checkpoints.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
#: Words for every module.
_EVERY = ("all", "all-linear")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSlots:
    """``slots`` adapters of at most ``rank`` in ``format`` on ``targets`` (every linear layer without), on ``experts`` too
    where kernels take them. ``sharded``: ranks cut the half of each that tensor parallelism leaves whole.
    """

    slots: int
    rank: int
    format: Format
    targets: Sequence[str] = ()
    experts: bool = False
    sharded: bool = False


class SlotBytes:
    """The slots of a model summed once for all stages and plans.

    ``slots · rank · (in + out)`` elements for each linear layer (vllm/lora/layers/base_linear.py, create_lora_weights: tensors of
    zeros at start; python/sglang/srt/lora/mem_pool.py, init_buffers): A is whole on every rank and B cut where the layer is cut
    along its columns, the other way round where it is cut along its rows. Slots on the embedding and the output matrix, which
    some models have, stand apart: how many do is not known.
    """

    def __init__(self, model: Model, slots: AdapterSlots) -> None:
        layers = [piece for one in slotted(model, slots) for piece in _pieces(one, slots)]
        matrices = [one for one in model.of_part("embedding", "head") if len(one.shape) == 2 and not slots.targets]
        vocabulary = [replace(one, shard="none", shard_units=1) for one in matrices]
        self._layers = WeightTable.of(replace(model, tensors=tuple(layers), tied_embeddings=False))
        self._vocabulary = WeightTable.of(
            replace(
                model,
                tensors=tuple(piece for one in vocabulary for piece in _pieces(one, slots)),
                tied_embeddings=False,
            )
        )

    def on_rank(
        self, *, start: Numbers, stop: Numbers, first: Any, last: Any, tp: Numbers, ep: Numbers, expert_tp: Numbers
    ) -> tuple[Any, Any]:
        """(bytes, half-width) on one rank of the stage that holds layers ``start`` up to ``stop``; slots on the vocabulary are
        there or not, so that half of them counts, give or take that half."""
        parts: list[RankWeights] = [
            rank_weights(
                table, start=start, stop=stop, first=first, last=last, tp=tp, ep=ep, expert_tp=expert_tp
            )
            for table in (self._layers, self._vocabulary)
        ]  # fmt: skip
        half = parts[1].text / 2
        return parts[0].text + half, half


def slotted(model: Model, slots: AdapterSlots) -> list[Tensor]:
    """The tensors of layers beside which an adapter lies."""
    return [one for one in model.tensors if _has_slot(one, slots)]


def _has_slot(tensor: Tensor, slots: AdapterSlots) -> bool:
    if not is_linear(tensor) or (tensor.experts and not slots.experts):
        return False
    names = [name for one in slots.targets for name in _FUSED.get(one, (one,))]
    return not names or any(one in _EVERY or is_target_name(tensor, one) for one in names)


def _pieces(tensor: Tensor, slots: AdapterSlots) -> list[Tensor]:
    pieces = low_rank(tensor, rank=slots.rank, stored=slots.format, stack=(slots.slots,))
    if not slots.sharded or tensor.experts:
        return pieces
    a, b = pieces
    if tensor.shard == "column":
        return [replace(a, shard="column", shard_units=slots.rank), b]
    if tensor.shard == "row":
        return [a, replace(b, shard="row", shard_units=tensor.shape[-2])]
    return pieces
