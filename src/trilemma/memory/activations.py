"""Bytes of saved activations on one rank: sets of saved tensors under a layout, a recompute mode and a number format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats import catalogue
from trilemma.memory.layer_facts import LayerFacts
from trilemma.memory.saved_tensors import SavedTensor, layer_tensors
from trilemma.memory.traits import BlockTraits
from trilemma.plans.training import Recompute, TrainingPlan
from trilemma.quantities import Numbers, ceil_div
from trilemma.workloads import TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """How one micro-batch lies on a rank: ``tokens`` of its sequences of ``seq``, and the cuts; scalars or arrays (plans,).

    ``expert_tp`` cuts each expert; ``imbalance`` is the load of the fullest expert rank over the mean.
    """

    tokens: Numbers
    seq: Numbers
    tp: Numbers = 1
    sp: bool = True
    expert_tp: Numbers = 1
    imbalance: float = 1.0

    @classmethod
    def of(cls, plan: TrainingPlan, workload: TrainingWorkload) -> Shards:
        """Tokens are ``micro_batch · seq / cp``: context parallelism cuts every activation along the sequence."""
        layout = plan.layout
        tokens = np.asarray(plan.micro_batch) * workload.seq * workload.filling / layout.cp
        return cls(
            tokens=tokens,
            seq=workload.seq,
            tp=layout.tp,
            sp=plan.sp,
            expert_tp=expert_tp(plan),
            imbalance=plan.imbalance,
        )


def expert_tp(plan: TrainingPlan) -> Any:
    """Ranks that cut one expert: as stated, else 1 where experts are spread and ``tp`` where they are not.

    Ranks, scalar or array (plans,). Source: Megatron-LM's arguments.py asks for it as
    ``--expert-tensor-parallel-size``.
    """
    if plan.expert_tp is not None:
        return plan.expert_tp
    return np.where(np.asarray(plan.layout.ep) > 1, 1, plan.layout.tp)


def tensor_bytes(tensor: SavedTensor, shards: Shards, *, activation_bits: float, fp8_bits: float | None = None) -> Any:
    """Bytes of one saved tensor on one rank, scalar or array (plans,).

    Tokens sent to experts: sequence parallelism deals a rank ``tokens / tp`` of them, expert tensor parallelism gathers
    those of its ``expert_tp`` ranks: ``tokens · expert_tp / tp`` rows for each choice, times the imbalance.

    Source: Korthikanti et al. 2022, section 4, for what tensor and sequence parallelism divide.
    """
    tp = np.asarray(shards.tp)
    bits = tensor.bits if tensor.bits is not None else activation_bits
    if tensor.copy and activation_bits >= 32:
        bits = 0.0
    if tensor.fp8 and fp8_bits is not None:
        bits = fp8_bits
    rows: Any = np.asarray(shards.tokens, dtype=float)
    if tensor.per == "layer":
        rows = np.ones(rows.shape)
    if tensor.per == "routed":
        cut = np.asarray(shards.expert_tp)
        rows = rows * cut / tp * shards.imbalance
        share = ceil_div(tensor.units, cut) / tensor.units if tensor.cut == "units" else np.ones(np.shape(tp))
    else:
        rows = rows * shards.seq if tensor.per == "pair" else rows
        share = _share(tensor, tp, shards.sp)
    return rows * share * (tensor.width * bits / 8)


def _share(tensor: SavedTensor, tp: Any, sp: bool) -> Any:
    if tensor.cut == "units":
        return ceil_div(tensor.units, tp) / tensor.units
    if tensor.cut == "sequence" and sp:
        return 1 / tp
    return np.ones(np.shape(tp))


def total_bytes(tensors: Iterable[SavedTensor], shards: Shards, **bits: Any) -> Any:
    """Sum over saved tensors.

    Bytes on one rank, scalar or array (plans,), added up as in Korthikanti et al. 2022, section 4.1.
    """
    return sum((tensor_bytes(tensor, shards, **bits) for tensor in tensors), start=np.zeros(np.shape(shards.tokens)))


def layer_input(hidden: int, bits: float | None = None) -> SavedTensor:
    """What checkpointing a whole layer keeps."""
    return SavedTensor(name="layer_input", width=hidden, bits=bits, op=True)


def kept_tensors(
    tensors: Sequence[SavedTensor],
    facts: LayerFacts,
    recompute: Recompute,
    *,
    compiled: bool = False,
    residual_bits: float | None = None,
) -> tuple[SavedTensor, ...]:
    """What of a layer's saved tensors outlives the forward pass under a recompute mode.

    Full: the layer's input alone. Op-level (torchtitan distributed/activation_checkpoint.py): the layer's input, outputs of
    attention and of every second matrix product, among them the last, whole where ranks hold partial sums. Selective: all
    but the named parts. A compiled layer recomputes pointwise operations from their inputs without being told.
    """
    whole = layer_input(facts.hidden, residual_bits)
    if recompute.mode == "full":
        return (whole,)
    if recompute.mode == "op":
        last = SavedTensor(name="down_output", width=facts.hidden, cut="whole", op=True)
        return (whole, *(tensor for tensor in tensors if tensor.op), last)
    dropped = set(recompute.parts) if recompute.mode == "selective" else set()
    return tuple(
        tensor for tensor in tensors if not (dropped & set(tensor.parts)) and not (compiled and tensor.pointwise)
    )


def trained_tensors(tensors: Iterable[SavedTensor], trained: frozenset[str] | None) -> tuple[SavedTensor, ...]:
    """Without what only the gradients of frozen weights would need; ``trained`` roles, None for all."""
    return tuple(
        tensor for tensor in tensors if trained is None or not tensor.needed_by or trained & set(tensor.needed_by)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerActivations:
    """Bytes of one kind of layer for one micro-batch: ``kept`` until backward, ``again`` made once more for one layer."""

    kept: Any
    again: Any


def layer_activations(
    facts: LayerFacts, traits: BlockTraits, plan: TrainingPlan, shards: Shards, *, trained: frozenset[str] | None,
    extra: Sequence[SavedTensor] = (), narrow_inputs: bool = False,
) -> LayerActivations:  # fmt: skip
    """Activations of one layer of a kind, scalar or array (plans,). ``extra``: what adapters save beside."""
    attention = plan.attention
    every = (*trained_tensors(layer_tensors(facts, traits, attention=attention), trained), *extra)
    bits: dict[str, Any] = {"activation_bits": catalogue.get(plan.recipe.activations).bits}
    if narrow_inputs and plan.recipe.matmul != "same":
        bits["fp8_bits"] = catalogue.get(NARROW[plan.recipe.matmul]).effective_bits
    kept = kept_tensors(every, facts, plan.recompute, compiled=plan.compiled, residual_bits=traits.residual_bits)
    made = kept_tensors(every, facts, Recompute(), compiled=plan.compiled)
    bare = total_bytes(made, shards, **bits)
    if plan.mlp_tiles > 1:
        # A tile at a time is made, and none outlives it.
        tiled = total_bytes((one for one in made if "mlp" in one.parts), shards, **bits)
        bare = bare - tiled * (1 - 1 / plan.mlp_tiles)
        kept = tuple(one for one in kept if "mlp" not in one.parts)
    outlives = total_bytes(kept, shards, **bits)
    return LayerActivations(kept=outlives, again=np.maximum(bare - outlives, 0.0))


#: Matrix-product format → format in which its saved inputs are kept.
NARROW = {
    "fp8_tensor": "fp8_tensor",
    "fp8_row": "fp8_channel",
    "fp8_block": "fp8_block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
