"""Parameters, gradients, master weights and optimizer state on one rank, by recipe and sharding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.formats import catalogue
from trilemma.memory.weights import shard_share
from trilemma.models.architecture import Model, Shard, Tensor
from trilemma.plans.recipes import frozen_as
from trilemma.plans.training import TrainingPlan
from trilemma.quantities import Numbers, ceil_div

#: What is summed for every tensor, in bytes: as held, as gathered for computing, gradients, master copy, moments,
#: low-precision copies; of adapters as held.
QUANTITIES = ("weights", "gathered", "gradients", "master", "optimizer", "copies", "adapter")
_ENDS = ("embedding", "head", "mtp")


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorCosts:
    """Bytes of one tensor for each of `QUANTITIES`, before any sharding. ``frozen_method`` quantised a frozen checkpoint,
    what a quantiser leaves is held in ``kept_format`` (None: as stored). ``trained_share`` of the decoder's layers are
    trained, and embedding and head where it is all of them."""

    plan: TrainingPlan
    frozen_format: str | None = None
    frozen_method: str = ""
    kept_format: str | None = None
    tied: bool = False
    trained_share: float = 1.0

    def of(self, tensor: Tensor) -> NDArray[np.float64]:
        """Bytes of ``tensor`` in the order of `QUANTITIES`.

        Frozen tensors cost what they are stored in and nothing else. Matrices of the decoder may have moments of their own
        (Muon), a factored moment is a row and a column (Adafactor, Shazeer and Stern 2018).
        """
        if self.trained_share < 1:
            # BAdam (Luo et al. 2024) and freezing: the others stay as they are stored.
            share = self.trained_share if tensor.part == "layers" else 0.0
            still = np.array([tensor.bytes, tensor.bytes, 0, 0, 0, 0, 0], dtype=float)
            return share * replace(self, trained_share=1.0).of(tensor) + (1 - share) * still
        recipe = self.plan.recipe
        adapter = tensor.role == "adapter"
        if self.frozen_format is not None and not adapter:
            # Quantisers of frozen weights leave embedding and head as they are.
            stored = self.frozen_format == "stored" or not tensor.quantizable or tensor.part != "layers"
            held = frozen_bytes(tensor, self.frozen_method) if stored else _bytes(tensor, self.frozen_format)
            if stored and self.kept_format is not None and self.frozen_format != "stored":
                # Autocast casts the output matrix anew and keeps the copy until backward.
                cast = tensor.role == "head" or (tensor.role == "embedding" and self.tied)
                held = _bytes(tensor, self.kept_format) + cast * _bytes(tensor, recipe.activations)
            return np.array([held, held, 0, 0, 0, 0, 0], dtype=float)
        weights = _bytes(tensor, recipe.weights)
        narrow = tensor.quantizable and not adapter
        held = weights if narrow or not recipe.weights.startswith(("fp8", "mxfp8", "nvfp4")) else _bytes(tensor, "bf16")
        copies = sum(_bytes(tensor, name) for name in recipe.weight_copies) if narrow else 0
        return np.array(
            [
                0 if adapter else held,
                0 if adapter else _bytes(tensor, recipe.gathered),
                _bytes(tensor, recipe.gradients),
                _bytes(tensor, recipe.master) if recipe.master else 0,
                self._moments(tensor),
                copies,
                held if adapter else 0,
            ],
            dtype=float,
        )

    def _moments(self, tensor: Tensor) -> float:
        optimizer, recipe = self.plan.optimizer, self.plan.recipe
        matrix = (tensor.quantizable or tensor.role == "adapter") and len(tensor.shape) >= 2
        if optimizer.factored:
            if not matrix and tensor.role not in ("embedding", "head"):
                return float(4 * tensor.elements)
            rows, columns = tensor.shape[-2:]
            return 4.0 * (rows + columns) * tensor.elements / (rows * columns)
        shape = tensor.shape
        held = 0.0
        if optimizer.projected and matrix and tensor.part == "layers":
            # galore_torch/galore_projector.py: the shorter side is projected, its projector in the format of the weights.
            long, short = max(shape[-2:]), min(shape[-2:])
            rank = min(optimizer.projected, short)
            held = _stored_bytes((*shape[:-2], rank, short), recipe.weights)
            shape = (*shape[:-2], rank, long)
        chosen = optimizer.moments if matrix or optimizer.other_moments is None else optimizer.other_moments
        return held + sum(_stored_bytes(shape, recipe.weights if name == "weights" else name) for name in chosen)


def frozen_bytes(tensor: Tensor, method: str = "") -> float:
    """Bytes of ``tensor`` as it lies beside adapters: as the checkpoint of ``method`` holds it, or expanded (`frozen_as`).

    A scalar. Source: data/training_recipes.toml, table ``frozen``.
    """
    name = frozen_as(tensor.format.name, method)
    return float(tensor.bytes) if name == tensor.format.name else _bytes(tensor, name)


def _bytes(tensor: Tensor, name: str) -> float:
    return _stored_bytes(tensor.shape, name)


@lru_cache(maxsize=4096)
def _stored_bytes(shape: tuple[int, ...], name: str) -> float:
    """Kept: a search asks for the few shapes of a model some thousand times."""
    return float(catalogue.get(name).storage_bytes(shape))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    shard: Shard
    units: int
    experts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StateTable:
    """A model's tensors summed by how they are cut, for each kind of layer and each end of the pipeline.

    ``by_kind`` (cuts, quantities, kinds), ``ends`` (cuts, quantities, ends), of which ``matrix`` (cuts, quantities) is one that
    both ends share; ``experts`` (cuts,) says which cuts are of experts.
    """

    cuts: tuple[_Cut, ...]
    by_kind: NDArray[np.float64]
    ends: NDArray[np.float64]
    matrix: NDArray[np.float64]
    experts: NDArray[np.bool_]

    @classmethod
    def of(
        cls, model: Model, tensors: Sequence[Tensor], order: Sequence[int], n_kinds: int, costs: TensorCosts
    ) -> StateTable:
        """``order`` is the kind of every decoder layer. Layers of one kind are alike: the first stands for all."""
        first: dict[int, int] = {}
        for position, kind in enumerate(order):
            first.setdefault(kind, model.layers[position].index)
        stands = {index: kind for kind, index in first.items()}
        sums: dict[tuple[Shard, int, int], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for tensor in tensors:
            if tensor.role == "table" or tensor.part == "vision":
                continue
            inside = tensor.part == "layers" and tensor.layer is not None
            if inside and tensor.layer not in stands:
                continue
            key = (tensor.shard, tensor.shard_units, tensor.experts)
            if key not in sums:
                sums[key] = (np.zeros((len(QUANTITIES), n_kinds)), np.zeros((len(QUANTITIES), len(_ENDS))))
            by_kind, ends = sums[key]
            if inside:
                by_kind[:, stands[tensor.layer or 0]] += costs.of(tensor)
            else:
                where = tensor.part if tensor.part in _ENDS else "head"
                ends[:, _ENDS.index(where)] += costs.of(tensor)
        cuts = tuple(_Cut(shard=shard, units=units, experts=experts) for shard, units, experts in sums)
        all_ends = np.stack([ends for _, ends in sums.values()])
        shared = np.array([[cut.shard == "vocab" and model.tied_embeddings] for cut in cuts])
        return cls(
            cuts=cuts,
            by_kind=np.stack([by_kind for by_kind, _ in sums.values()]),
            ends=all_ends,
            matrix=all_ends[:, :, 0] * shared,
            experts=np.array([cut.experts > 0 for cut in cuts]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """Bytes of the tensors that a rank is responsible for, before data-parallel sharding: (quantities, stages, plans).

    ``dense`` is shared by ``dp · cp`` ranks, ``expert`` by those that hold the same experts. ``block`` is the gathered size
    of the largest single layer (quantities, plans), ``ends`` of embedding and head.
    """

    dense: NDArray[np.float64]
    expert: NDArray[np.float64]
    block: NDArray[np.float64]
    embedding: NDArray[np.float64]
    head: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class CutTerms:
    """What of a rank's state its plan decides without its pipeline: ``shares`` of each cut on one rank (cuts, plans), and by
    them the gathered size of the largest single layer (quantities, plans), of embedding and head."""

    shares: NDArray[np.float64]
    block: NDArray[np.float64]
    embedding: NDArray[np.float64]
    head: NDArray[np.float64]

    def take(self, here: NDArray[Any]) -> CutTerms:
        """The terms of some rows."""
        return CutTerms(**{one.name: getattr(self, one.name)[:, here] for one in fields(self)})


def cut_terms(
    table: StateTable, *, tp: NDArray[Any], ep: NDArray[Any], expert_tp: Numbers, vocab_multiple: int
) -> CutTerms:
    """Terms of plans with ``tp``, ``ep`` and ``expert_tp`` of (plans,).

    Vocabulary rows are padded to ``vocab_multiple · tp`` (Megatron-LM's make-vocab-size-divisible-by); 1 pads to nothing.
    """
    shares = np.stack(
        [_share(cut, tp=tp, ep=ep, expert_tp=expert_tp, vocab_multiple=vocab_multiple) for cut in table.cuts]
    )
    return CutTerms(
        shares=shares,
        block=_shared_out(table.by_kind, shares).max(axis=1),
        embedding=_shared_out(table.ends[:, :, 0], shares),
        head=_shared_out(table.ends[:, :, 1] + table.matrix, shares),
    )


def rank_state(
    table: StateTable, *, counts: NDArray[Any], first: NDArray[Any], last: NDArray[Any], terms: CutTerms, mtp: bool
) -> RankState:
    """Sum the tensors of the layers of each stage and of the ends it holds.

    ``counts`` (stages, kinds), ``first`` and ``last`` (stages,). A tied matrix counts once where both ends meet and on each
    end where they do not.
    """
    copied = np.where((last > 0) & (first == 0), last, 0.0)
    heads = last[:, None] * np.array([0, 1, mtp]) + first[:, None] * np.array([1, 0, 0])
    whole = table.by_kind @ counts.T + table.ends @ heads.T + table.matrix[:, :, None] * copied
    experts, shares = table.experts, terms.shares
    return RankState(
        dense=_shared_out(whole[~experts], shares[~experts]),
        expert=_shared_out(whole[experts], shares[experts]),
        block=terms.block,
        embedding=terms.embedding,
        head=terms.head,
    )


def _shared_out(whole: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over cuts of ``whole`` (cuts, …) times ``shares`` (cuts, plans): (…, plans)."""
    return np.asarray(np.tensordot(whole, shares, axes=(0, 0)))


def _share(cut: _Cut, *, tp: NDArray[Any], ep: NDArray[Any], expert_tp: Numbers, vocab_multiple: int) -> NDArray[Any]:
    """Share (plans,) on one rank. Expert parallelism spreads whole experts, tensor parallelism may cut each of them too."""
    if cut.experts:
        spread = ceil_div(cut.experts, ep) / cut.experts
        inner = shard_share(shard=cut.shard, units=cut.units, experts=0, tp=np.asarray(expert_tp))
        return np.broadcast_to(np.asarray(spread * inner, dtype=float), tp.shape)
    padding = vocab_multiple * tp if vocab_multiple > 1 else 1
    share = shard_share(shard=cut.shard, units=cut.units, experts=0, tp=tp, vocab_padding=padding)
    return np.broadcast_to(np.asarray(share, dtype=float), tp.shape)


def shard_groups(plan: TrainingPlan, expert_tp: Numbers) -> tuple[Any, Any]:
    """Ranks over which state of dense and of expert tensors is sharded, scalar or array (plans,).

    Dense tensors: ``dp · cp``. Experts: ``tp · cp · dp / (ep · expert_tp)``. ``shard_group`` bounds both (HSDP).

    Source: Megatron-LM's core/parallel_state.py, groups of data and of expert data parallelism.
    """
    layout = plan.layout
    dense = np.asarray(layout.dp) * layout.cp
    expert = np.maximum(dense * layout.tp // (np.asarray(layout.ep) * expert_tp), 1)
    if plan.shard_group is not None:
        dense, expert = np.minimum(dense, plan.shard_group), np.minimum(expert, plan.shard_group)
    return dense, expert


def sharded(whole: RankState, quantity: str, groups: tuple[Any, Any], *, shard: bool) -> NDArray[np.float64]:
    """Bytes (stages, plans) of a quantity, divided by its data-parallel group where it is sharded.

    Source: Rajbhandari et al. 2020 (ZeRO), section 5.
    """
    row = QUANTITIES.index(quantity)
    dense, expert = groups if shard else (1, 1)
    return np.asarray(whole.dense[row] / dense + whole.expert[row] / expert)
