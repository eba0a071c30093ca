"""What a step needs beside state and activations: gathered layers and sequences, gradients being reduced, replicas' buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.memory.activations import Shards
from trilemma.memory.training_state import QUANTITIES, RankState, sharded
from trilemma.memory.traits import coefficients
from trilemma.models.architecture import Shard, Tensor
from trilemma.plans.training import TrainingPlan
from trilemma.quantities import GIB


def gathered_weights(state: RankState, plan: TrainingPlan, facts: Mapping[str, Any], *, first: Any, last: Any) -> Any:
    """Bytes (stages, plans) of layers that ZeRO-3 holds whole: the running one, the prefetched one, both ends.

    Without resharding after the forward pass every layer of the stage stays whole until its backward pass; so it does where
    an implementation keeps layers whole between the micro-batches of a pipeline (`whole_in_pipelines`).

    Source: Zhao et al. 2023 (FSDP), section 3; Rajbhandari et al. 2020 (ZeRO), stage 3.
    """
    if plan.zero < 3:
        return np.zeros_like(state.dense[0])
    row = QUANTITIES.index("gathered")
    head = np.outer(last, state.head[row])
    ends = np.outer(first, state.embedding[row]) + head
    if not plan.reshard or whole_in_pipelines(plan, facts):
        return state.dense[row] + state.expert[row]
    layers = state.dense[row] + state.expert[row] - ends
    whole = np.minimum(layers, facts["gathered_blocks"] * state.block[row])
    whole = np.minimum(whole, facts.get("most_gathered", math.inf) * catalogue.get(plan.recipe.gathered).bits / 8)
    return whole + (ends if facts["embedding_gathered"] else head)


def whole_in_pipelines(plan: TrainingPlan, facts: Mapping[str, Any]) -> bool:
    """Whether the micro-batches of a pipeline share gathered weights and add up gradients that are not sharded yet.

    torch/distributed/pipelining/stage.py, backward_maybe_with_nosync: FSDP neither reshards nor reduces before the last one.
    ``plan`` has scalar ``pp``.
    """
    return bool(facts["pipelines_whole"]) and plan.zero == 3 and int(plan.layout.pp) > 1


def reduced_gradients(state: RankState, plan: TrainingPlan, facts: Mapping[str, Any]) -> Any:
    """Bytes (plans,) of one layer's gradients while they are reduced to the rank that owns them (ZeRO-2 and 3).

    Flat parameters (torch/distributed/fsdp/_runtime_utils.py, FSDP1) are reduced whole: the unit's gradient as computed and its
    copy in FP32. What no layer holds is one unit, whose head waits for the embedding's gradient until backward ends.
    """
    if plan.zero < 2:
        return np.zeros(state.block.shape[1])
    row = QUANTITIES.index("gradients")
    each = 8 / catalogue.get(plan.recipe.gradients).bits
    if plan.flat_parameters:
        computed = catalogue.get(plan.recipe.gathered).bits / 8
        return each * (state.block[row] * (computed + 4.0) + state.head[row] * computed)
    elements = np.minimum(each * state.block[row], facts.get("most_reduced", math.inf))
    return elements * facts["gradient_block_bytes"]


def replica_buckets(state: RankState, plan: TrainingPlan, facts: Mapping[str, Any], ranks: Any) -> Any:
    """Bytes (stages, plans) in which replicas reduce gradients: flat tensors as large as all of them, allocated once and held
    beside them. ``ranks``: replicas of a weight, scalar or (plans,).

    Source: torch/csrc/distributed/c10d/reducer.cpp, initialize_buckets (bucket.gradients = at::empty); gradients are views into
    them only under gradient_as_bucket_view, which DistributedDataParallel and Accelerate leave off.
    """
    several = np.asarray(ranks) > 1
    return sharded(state, "gradients", (1, 1), shard=False) * (
        bool(facts.get("replica_buckets")) & several & (plan.zero == 0)
    )


def stepped_gradients(updated: Any, plan: TrainingPlan, facts: Mapping[str, Any]) -> Any:
    """Bytes of the copies that an optimizer step makes of 16-bit gradients: one flat tensor, and that in FP32.

    ``updated``: bytes of gradients of the weights that this rank updates, scalar or array (stages, plans), as the result.

    Source: DeepSpeed copies its whole partition (ZeRO-1 and 2: stage_1_and_2.py, step) or a sub-group of it (ZeRO-3: stage3.py,
    _prepare_fp32_grad_for_sub_group), on the card unless the host updates.
    """
    bits = catalogue.get(plan.recipe.gradients).bits
    if not facts.get("steps_in_fp32", False) or plan.recipe.master is None or bits > 16:
        return np.zeros_like(updated)
    elements = updated * 8 / bits
    most = facts["most_stepped"] if plan.zero >= 3 else math.inf
    return np.minimum(elements, most) * (bits + 32) / 8 * (1 - plan.offload.optimizer)


def gathered_sequence(hidden: int, plan: TrainingPlan, shards: Shards, *, copies: float) -> Any:
    """Bytes of hidden states gathered along the sequence before a column-parallel product (plans,): sequence parallelism
    keeps ``1 / tp`` of them and gathers the rest for each product, forward and backward.

    Source: Korthikanti et al. 2022, section 4.2.2.
    """
    tp = np.asarray(shards.tp)
    width = hidden * catalogue.get(plan.recipe.activations).bits / 8
    return np.where((tp > 1) & plan.sp, copies * np.asarray(shards.tokens) * width, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placeholder:
    """The weight gradient that a fused product hands to autograd though the real one is added to a buffer: one for each
    shape of a weight (Transformer Engine, get_dummy_wgrad)."""

    bytes: float
    shard: Shard
    units: int
    expert: bool


def placeholders(tensors: Iterable[Tensor]) -> tuple[Placeholder, ...]:
    """One for each distinct shape; q, k, v and gate, up are one product each (Megatron's linear_qkv and linear_fc1)."""
    groups: dict[tuple[int | None, str], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.quantizable and len(tensor.shape) >= 2:
            role = tensor.role
            name = "attention.qkv" if role in ("attention.q", "attention.k", "attention.v") else role
            name = f"{role.rpartition('.')[0]}.fc1" if role.endswith((".gate", ".up")) else name
            groups.setdefault((tensor.layer, name), []).append(tensor)
    shapes: dict[tuple[int, int, Shard], Placeholder] = {}
    for group in groups.values():
        rows, columns = sum(one.shape[-2] for one in group), group[0].shape[-1]
        first = group[0]
        shapes[(rows, columns, first.shard)] = Placeholder(
            bytes=2.0 * rows * columns, shard=first.shard, units=first.shard_units, expert=bool(first.experts)
        )
    return tuple(shapes.values())


def context_bytes(cluster: Cluster) -> float:
    """Bytes outside the caching allocator: CUDA context, and communicators where ranks are several
    (data/coefficients/training_memory.toml).

    Scalars or arrays (plans,).
    """
    facts = coefficients()["context"]
    return float((facts["cuda_gib"] + (facts["communicators_gib"] if cluster.gpus > 1 else 0.0)) * GIB)


def libraries_bytes(cluster: Cluster, facts: Mapping[str, Any]) -> float:
    """Bytes that matrix libraries hold inside the caching allocator; none on a processor.

    Source: ``libraries_gib`` of data/coefficients/training_memory.toml; runs of Megatron-LM's functional tests at d98e8a64 whose
    models are small (golden values of mem-max-allocated-bytes on H100) lie 0.09 to 0.12 GiB above what their tensors make.
    """
    return 0.0 if cluster.accelerator.vendor == "CPU" else float(facts["libraries_gib"] * GIB)
