"""What happens once a step: gradients and weights between replicas, and the optimizer's work, on the rank that holds most."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.formats import catalogue
from trilemma.plans.training import TrainingPlan
from trilemma.quantities import Numbers
from trilemma.timing.attention import OperatorWork
from trilemma.timing.training_collectives import Fabric, Volume, gathered
from trilemma.timing.training_operators import TrainingWork
from trilemma.workloads import TrainingWorkload

_HALF_BYTES = 2


def state_loads(
    work: TrainingWork, plan: TrainingPlan, workload: TrainingWorkload, share: Any, etp: Any, fabric: Fabric
) -> dict[str, Any]:
    """Gradients and weights exchanged between replicas, and what the optimizer touches, on the rank that holds most."""
    layout = plan.layout
    tp, pp, ep = _float(layout.tp), _float(layout.pp), _float(layout.ep)
    dense = sum((p.elements * p.share(tp) for p in (*work.linears, *work.feed_forward, *work.plain)), start=0.0 * tp)
    both_ends = work.head_elements + (0 if work.tied else work.embedding_elements)
    dense = dense * share + np.where(pp > 1, work.head_elements, both_ends) / tp
    routed = work.expert_elements / (ep * etp) * share
    replicas = _float(layout.dp) * layout.cp
    expert_replicas = np.maximum(tp * replicas / (ep * etp), 1.0)
    trained = _trained_share(work, workload)
    grads = _bytes(plan.recipe.gradients)
    exchanges = [
        _replicas(plan, elements, trained, count, stride, fabric, gathered_bytes=_gathered_bytes(work, plan, workload))
        for elements, count, stride in ((dense, replicas, tp), (routed, expert_replicas, ep * etp))
    ]
    shared = plan.zero > 0
    updated = trained * (dense / (replicas if shared else 1.0) + routed / (expert_replicas if shared else 1.0))
    weights = _bytes(plan.recipe.weights)
    ends = np.where(pp > 1, work.head_elements, both_ends) / tp / np.maximum(dense + routed, 1.0)
    moments = _moment_bytes(plan, ends)
    master = _bytes(plan.recipe.master) if plan.recipe.master else 0.0
    once = (pp > 1) | (plan.zero != 3)
    if plan.optimizer.newton_schulz_steps and plan.zero >= 2:
        # Whole matrices are multiplied: sharded momenta are gathered first (16 bits).
        exchanges += [
            (gathered(0.0 * elements, count, stride, fabric.near_ranks),
             gathered(_HALF_BYTES * elements, count, stride, fabric.near_ranks))
            for elements, count, stride in ((dense, replicas, tp), (routed, expert_replicas, ep * etp))
        ]  # fmt: skip
    return {
        "shard": _sum(*(shard for shard, _ in exchanges)),
        "shard_times": np.where(once, 1.0, _float(plan.micro_batches(workload))),
        "data": _sum(*(data for _, data in exchanges)),
        "data_calls": 2.0 * (replicas > 1),
        "optimizer": (1 - plan.offload.optimizer) * updated * (2 * (moments + master) + grads + 2 * weights),
        "newton_schulz": _newton_schulz(work, plan, share, tp, ep * etp, replicas, expert_replicas),
        "host_optimizer": plan.offload.optimizer * updated * (2 * (moments + master) + grads + 2 * weights),
        "offload": plan.offload.optimizer * updated * (grads + weights),
    }


def _newton_schulz(
    work: TrainingWork, plan: TrainingPlan, share: Any, tp: Any, experts: Any, replicas: Any, expert_replicas: Any
) -> OperatorWork:
    """FLOPs and bytes of Muon's products on one rank, numbers or arrays (plans,).

    Tensor parallelism multiplies each piece by itself (Megatron-LM's blockwise mode); replicas share the matrices where the
    optimizer is sharded (layer-wise distributed optimizer) and repeat them where it is not. Each step reads the matrix three
    times and writes it once in 16 bits.
    """
    steps = float(plan.optimizer.newton_schulz_steps)
    dense, routed = work.newton_schulz
    each, every = (replicas, expert_replicas) if plan.zero > 0 else (1.0, 1.0)
    matrices = work.dense_elements / tp / each + work.expert_elements / experts / every
    return OperatorWork(
        flops=steps * share * (dense / tp / each + routed / experts / every),
        bytes=steps * share * 4.0 * _HALF_BYTES * matrices,
    )


def _moment_bytes(plan: TrainingPlan, ends: Any) -> Any:
    """Bytes of the moments of one weight on average; ``ends`` is the share of embedding and head, which may have others."""
    each = [
        float(sum(_bytes(plan.recipe.weights if one == "weights" else one) for one in names))
        for names in (plan.optimizer.moments, plan.optimizer.other_moments or plan.optimizer.moments)
    ]
    return each[0] + (each[1] - each[0]) * ends


def _trained_share(work: TrainingWork, workload: TrainingWorkload) -> float:
    """Trained parameters over all of them: low-rank pairs are ``rank · (inputs + outputs)`` of each matrix (Hu et al. 2021)."""
    if not workload.trains_adapters:
        return 1.0
    widths = sum(p.inputs + p.outputs for p in (*work.linears, *work.feed_forward))
    return min(workload.rank * widths / max(work.dense_elements + work.expert_elements, 1), 1.0)


def _gathered_bytes(work: TrainingWork, plan: TrainingPlan, workload: TrainingWorkload) -> float:
    """Bytes of one weight that ZeRO-3 and FSDP gather: as computed in where it trains, as stored where it is frozen
    (torch/distributed/fsdp gathers flat parameters as they are held; bitsandbytes' 4-bit weights are such a storage)."""
    if not workload.trains_adapters:
        return _bytes(plan.recipe.gathered)
    stored = workload.held_format
    return work.stored_bytes if stored in (None, "stored") else catalogue.get(stored).effective_bits / 8


def _replicas(
    plan: TrainingPlan, elements: Any, trained: float, count: Any, stride: Any, fabric: Fabric, *, gathered_bytes: float
) -> tuple[Volume, Volume]:
    """(near, far) bytes per gather-and-scatter of sharded weights, and per step between replicas, of ``elements`` weights held
    by ``count`` ranks, one every ``stride``.

    Without sharding gradients are summed and spread; ZeRO-1 and -2 scatter sums of gradients and gather weights back; ZeRO-3
    gathers weights for forward and, unless kept, for backward, and scatters sums (Rajbhandari et al. 2020, section 7). Groups
    smaller than all ranks (HSDP) sum their shards with the other groups once a step.
    """
    near = fabric.near_ranks
    summed = elements * _bytes(plan.recipe.gradients) * trained
    nothing = (0.0 * elements, 0.0 * elements)
    if plan.zero < 3:
        back = elements * trained * _bytes(plan.recipe.gathered if plan.zero else plan.recipe.gradients)
        return nothing, _sum(gathered(summed, count, stride, near), gathered(back, count, stride, near))
    members = count if plan.shard_group is None else np.minimum(_float(plan.shard_group), count)
    weights = gathered(elements * gathered_bytes, members, stride, near)
    shard = _sum(_scaled(weights, 2.0 if plan.reshard else 1.0), gathered(summed, members, stride, near))
    groups = np.maximum(count / members, 1.0)
    return shard, _scaled(gathered(summed / members, groups, stride * members, near), 2.0)


def _bytes(name: str) -> float:
    return catalogue.get(name).bits / 8


def _scaled(volume: Volume, factor: Any) -> Volume:
    return volume[0] * factor, volume[1] * factor


def _sum(*volumes: Volume) -> Volume:
    return sum(one[0] for one in volumes), sum(one[1] for one in volumes)


def _float(value: Numbers) -> Any:
    return np.asarray(value, dtype=float)
