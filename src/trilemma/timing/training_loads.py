"""What one training step asks of the hardware: FLOPs, bytes and launches of the fullest pipeline stage, per rank.

Counts only; no rate and no overlap. Quantities per forward pass are of one micro-batch; how often each is repeated backward
and in recompute is in `Passes`. All are numbers or arrays (plans,).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats import catalogue
from trilemma.plans.training import TrainingPlan
from trilemma.quantities import Numbers, ceil_div
from trilemma.timing.attention import OperatorWork, prefill_work
from trilemma.timing.operators import Products
from trilemma.timing.stage_shares import stage_shares
from trilemma.timing.training_collectives import (
    ONCE_A_DOMAIN,
    Fabric,
    Volume,
    exchanged,
    gathered,
    members_near,
    passed_on,
)
from trilemma.timing.training_operators import TrainingWork
from trilemma.timing.training_passes import Passes, passes_of
from trilemma.timing.training_state_loads import state_loads
from trilemma.workloads import QLORA_FORMAT, TrainingWorkload

_HALF_BYTES = 2
#: Schedules that run one micro-batch's forward beside another's backward (DeepSeek-V3 report, section 3.2.1).
_DUAL = ("dualpipe", "dualpipev")
#: Bytes that unfused attention moves per score in one forward pass: written, scaled and masked, soft-maxed, dropped out, read.
_SCORE_BYTES = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Loads:
    """Work of one forward pass of one micro-batch on the fullest stage, and what happens once per step.

    FLOPs and bytes per rank. Pairs are (near, far) bytes over the two wires. ``attention_narrow`` is attention FLOPs over
    head width, for kernels that narrow heads starve. ``casts`` are bytes of activations turned into a narrow format.
    ``last_share`` is what the last stage holds of the fullest one's layers; it makes the logits beside; ``others_share`` is what
    all others hold.
    """

    linear: OperatorWork
    feed_forward: OperatorWork
    plain: OperatorWork
    experts: OperatorWork
    head: OperatorWork
    attention: OperatorWork
    attention_narrow: Any
    scan: Any
    pointwise: Any
    logits: Any
    casts: Any
    launches: Any
    tensor: Volume
    tensor_calls: Any
    experts_exchange: Volume
    expert_calls: Any
    expert_overlap: Any
    context: Volume
    pipeline: Volume
    shard: Volume
    shard_times: Any
    data: Volume
    data_calls: Any
    optimizer: Any
    newton_schulz: OperatorWork
    host_optimizer: Any
    offload: Any
    micro_batches: Any
    last_share: Any
    others_share: Any
    tokens: Any
    passes: Passes
    tensor_volumes: tuple[float, float, float]


def training_loads(
    work: TrainingWork,
    plan: TrainingPlan,
    workload: TrainingWorkload,
    fabric: Fabric,
    *,
    dispatcher: str = "",
) -> Loads:
    """Everything that a step of ``plan`` asks for. ``layout`` fields and ``micro_batch`` may be arrays (plans,).

    ``dispatcher`` of the framework counts where the plan names none ("": all-to-all).
    """
    layout = plan.layout
    tp, cp = _float(layout.tp), _float(layout.cp)
    placed = stage_shares(work.layers, plan, mtp=work.mtp_layers)
    share = placed.fullest
    rows = _float(plan.micro_batch) * workload.seq / cp
    etp = expert_tensor_parallel(plan)
    linear = _products(work.linears, rows, tp).times(share)
    feed_forward = _products(work.feed_forward, rows, tp).times(share)
    plain = _products(work.plain, rows, tp).times(share)
    experts = _experts(work, rows, tp, layout.ep, etp, plan.imbalance).times(share)
    attention, narrow, scan = _attention(work, plan, workload, tp, cp)
    stream = work.pointwise.stream / np.where(plan.sp, tp, 1.0)
    inside = (work.pointwise.inner + work.pointwise.routed * plan.imbalance) / tp
    tensor, joins = _tensor(work, plan, rows, etp, fabric)
    exchange = _exchange(work, rows, tp, plan, fabric, once=(plan.dispatcher or dispatcher) in ONCE_A_DOMAIN)
    once = state_loads(work, plan, workload, share, etp, fabric)
    return Loads(
        linear=linear,
        feed_forward=feed_forward,
        plain=plain,
        experts=experts,
        head=_products(work.head, rows, tp).times(work.heads),
        attention=attention.times(share),
        attention_narrow=narrow * share,
        scan=scan * share,
        pointwise=rows * (stream + inside) * _HALF_BYTES * share
        + _dequantised(work, workload, tp, layout.ep, etp) * share,
        logits=work.heads * rows * work.vocab / tp * _HALF_BYTES,
        casts=_casts(work, plan, rows, tp) * share,
        launches=work.kernels * share,
        tensor=_scaled(tensor, share),
        tensor_calls=joins * share * (tp > 1),
        experts_exchange=_scaled(exchange, share),
        expert_calls=work.expert_joins * share * (_float(layout.ep) > 1),
        expert_overlap=_float(plan.overlap_expert or plan.schedule in _DUAL),
        context=_scaled(_context(work, plan, rows, tp, fabric), share),
        pipeline=_pipeline(work, plan, rows, tp, fabric),
        micro_batches=_float(plan.micro_batches(workload)),
        last_share=placed.last,
        others_share=placed.others,
        tokens=workload.seq * workload.global_batch / _float(layout.gpus),
        passes=passes_of(plan, workload, placed.layers),
        tensor_volumes=(2.0, 3.0 if plan.sp else 2.0, 2.0),
        **once,
    )


def expert_tensor_parallel(plan: TrainingPlan) -> Any:
    """Ranks that cut one expert: as stated, else 1 where experts are spread over ranks and ``tp`` where they are not.

    Ranks, scalar or array (plans,). Source: Megatron-LM's arguments.py, ``--expert-tensor-parallel-size``.
    """
    if plan.expert_tp is not None:
        return _float(plan.expert_tp)
    return np.where(_float(plan.layout.ep) > 1, 1.0, _float(plan.layout.tp))


def _products(products: tuple[Products, ...], rows: Any, tp: Any) -> OperatorWork:
    return sum((product.work(rows, tp) for product in products), start=OperatorWork(flops=0.0 * rows, bytes=0.0 * rows))


def _activations(products: tuple[Products, ...], rows: Any, tp: Any) -> Any:
    """Bytes of activations that meet matrices in one forward pass."""
    return sum((p.work(rows, tp).bytes - p.bytes * p.share(tp) for p in products), start=0.0 * rows)


#: Bytes per weight of a base held in 4 bits each time it is multiplied: read packed, written and read in 16 bits.
_DEQUANTISED_BYTES = 4.5


def _dequantised(work: TrainingWork, workload: TrainingWorkload, tp: Any, ep: Numbers, etp: Any) -> Any:
    """Bytes that a quantised base costs beside its products in one forward pass (Dettmers et al. 2023, section 3)."""
    if workload.held_format != QLORA_FORMAT:
        return 0.0 * tp
    held = work.dense_elements / tp + work.expert_elements / (_float(ep) * etp)
    return held * _DEQUANTISED_BYTES


def _casts(work: TrainingWork, plan: TrainingPlan, rows: Any, tp: Any) -> Any:
    """Bytes of activations that low-precision products turn into their format; none in 16 bits."""
    if plan.recipe.matmul == "same":
        return 0.0 * rows
    return _activations((*work.linears, *work.feed_forward), rows, tp) + _routed_activations(work, rows, tp)


def _routed_activations(work: TrainingWork, rows: Any, tp: Any) -> Any:
    return sum(e.layers * rows / tp * e.top_k * _HALF_BYTES * (e.inputs + e.outputs) for e in work.experts)


def _experts(work: TrainingWork, rows: Any, tp: Any, ep: Numbers, etp: Any, imbalance: float) -> OperatorWork:
    """Grouped products of one rank: its part of all routed rows (the fullest rank's under imbalance), and every expert
    that it holds read once."""
    flops, traffic = 0.0 * rows, 0.0 * rows
    for expert in work.experts:
        routed = rows * expert.top_k / tp * imbalance
        one = expert.elements / expert.experts
        flops = flops + expert.layers * 2.0 * routed * one
        held = expert.bytes / _float(ep) / etp
        traffic = traffic + expert.layers * (held + _HALF_BYTES * routed * (expert.inputs + expert.outputs))
    return OperatorWork(flops=flops, bytes=traffic)


def _attention(
    work: TrainingWork, plan: TrainingPlan, workload: TrainingWorkload, tp: Any, cp: Any
) -> tuple[OperatorWork, Any, Any]:
    """Attention of one forward pass, its FLOPs over head width, and FLOPs of recurrent scans.

    Context parallelism shares the triangle evenly (head-tail order of blocks). Unfused attention computes and stores the
    whole square of scores. Of packed examples each attends to itself alone.
    """
    fmt = catalogue.get("bf16")
    reach = workload.attended
    sequences = _float(plan.micro_batch) / cp * (workload.seq / reach)
    flops, narrow, scan, traffic = (0.0 * sequences * tp for _ in range(4))
    for mixer, count in work.mixers:
        one = prefill_work(mixer, tokens=reach, cached=0, tp=tp, kv_format=fmt).flops * sequences * count
        width = mixer.value_width
        if width is None:
            scan = scan + one
            continue
        if plan.attention == "eager":
            one = one * 2.0
            scores = ceil_div(mixer.heads, tp) * float(reach) ** 2 * sequences * count
            traffic = traffic + scores * _SCORE_BYTES
        flops, narrow = flops + one, narrow + one / width
    return OperatorWork(flops=flops, bytes=traffic), narrow, scan


def _tensor(work: TrainingWork, plan: TrainingPlan, rows: Any, etp: Any, fabric: Fabric) -> tuple[Volume, Any]:
    """(near, far) bytes of one gather or scatter of every join of a forward pass, and how many joins there are."""
    joins = work.joins + np.where(etp > 1, work.expert_joins, 0)
    near, far = gathered(rows * work.hidden * _HALF_BYTES, plan.layout.tp, 1, fabric.near_ranks)
    return (near * joins, far * joins), joins


def _exchange(work: TrainingWork, rows: Any, tp: Any, plan: TrainingPlan, fabric: Fabric, *, once: bool) -> Volume:
    """(near, far) bytes of one dispatch (as many to combine) of all mixtures; ``once``: a token crosses once into each domain,
    as it does under DualPipe too (DeepSeek-V3 report, section 3.2.2), not once for each of its experts."""
    if not work.experts:
        return 0.0 * rows, 0.0 * rows
    sent = rows / tp * work.exchanged * _HALF_BYTES * plan.imbalance
    together = once or plan.schedule in _DUAL
    copies, limit = (work.experts[0].top_k, work.router_groups) if together else (1, (1, 1))
    return exchanged(sent, plan.layout.ep, 1, fabric.near_ranks, copies=copies, limit=limit)


def _context(work: TrainingWork, plan: TrainingPlan, rows: Any, tp: Any, fabric: Fabric) -> Volume:
    """(near, far) bytes of keys and values passed around a ring of context ranks in a forward pass.

    A ring moves at the pace of its slowest hop: it is far as a whole once it leaves the domain.
    """
    cp = _float(plan.layout.cp)
    sent = rows * work.kv_width / tp * _HALF_BYTES * (cp - 1)
    if plan.cp_exchange == "all_to_all":
        queries = sum(count * mixer.heads * (mixer.value_width or 0) for mixer, count in work.mixers)
        sent = rows * (work.kv_width + 2.0 * queries) / tp * _HALF_BYTES * (cp - 1) / cp
    inside = members_near(cp, plan.layout.tp, fabric.near_ranks) >= cp
    return np.where(inside, sent, 0.0), np.where(inside, 0.0, sent)


def _pipeline(work: TrainingWork, plan: TrainingPlan, rows: Any, tp: Any, fabric: Fabric) -> Volume:
    """(near, far) bytes handed on forward and back for one micro-batch, all chunks of the stage."""
    layout = plan.layout
    pp, gpus = _float(layout.pp), _float(layout.gpus)
    sent = np.where(pp > 1, 2.0 * _float(layout.vpp) * rows * work.hidden * _HALF_BYTES, 0.0)
    return passed_on(sent / np.where(plan.sp, tp, 1.0), gpus / pp, gpus, fabric.near_ranks)


def _scaled(volume: Volume, factor: Any) -> Volume:
    return volume[0] * factor, volume[1] * factor


def _sum(*volumes: Volume) -> Volume:
    return sum(one[0] for one in volumes), sum(one[1] for one in volumes)


def _float(value: Numbers) -> Any:
    return np.asarray(value, dtype=float)
