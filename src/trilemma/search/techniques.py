"""The techniques of a training plan: what each cuts, which collective it pays, how often in a step, and over what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans.training import TrainingPlan
from trilemma.timing.training_step import StepTime
from trilemma.workloads import TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class Technique:
    """One row of the table: ``exposed_s`` and ``hidden_s`` are seconds of its collectives in a step (None: it has none)."""

    name: str
    cuts: str
    collective: str
    per_step: str
    runs_on: str
    exposed_s: float | None = None
    hidden_s: float | None = None


def techniques(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, step: StepTime
) -> tuple[Technique, ...]:
    """Rows for every technique in use, ranks ordered tensor, context, data, pipeline from the inside out (Megatron-LM,
    parallel_state.py)."""
    rows: list[Technique] = []
    rows += _tensor(model, cluster, plan, workload, step)
    rows += _context(model, cluster, plan, workload, step)
    rows += _experts(model, cluster, plan, workload, step)
    rows += _pipeline(cluster, plan, workload, step)
    rows += _data(model, cluster, plan, workload, step)
    rows += _elsewhere(model, plan)
    return tuple(rows)


def _micro_batches(plan: TrainingPlan, workload: TrainingWorkload) -> int:
    return int(plan.micro_batches(workload))


def _layers(model: Model, plan: TrainingPlan) -> int:
    return -(-len(model.layers) // int(plan.layout.pp))


def _wire(cluster: Cluster, span: int) -> str:
    """What a group of neighbours that spans ``span`` ranks talks over."""
    path = cluster.path(min(span, cluster.gpus))
    return {"link": path.name, "pcie": "PCIe", "network": "network between nodes"}.get(path.kind, "one GPU")


def _seconds(step: StepTime, line: str) -> dict[str, float]:
    found = {"exposed_s": float(step.lines[line])}
    return found | ({"hidden_s": float(step.hidden[line])} if line in step.hidden else {})


def _tensor(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, step: StepTime
) -> Iterator[Technique]:
    tp = int(plan.layout.tp)
    if tp == 1:
        return
    times = _micro_batches(plan, workload) * _layers(model, plan)
    yield Technique(
        name=f"TP{tp}" + (" + SP" if plan.sp else ""),
        cuts="heads and FFN columns of every layer" + (", norms by sequence" if plan.sp else ""),
        collective="all-gather and reduce-scatter" if plan.sp else "all-reduce",
        per_step=f"{8 if plan.sp else 4} a layer x {times:,} layer passes",
        runs_on=_wire(cluster, tp),
        **_seconds(step, "tensor_parallel"),
    )


def _context(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, step: StepTime
) -> Iterator[Technique]:
    cp = int(plan.layout.cp)
    if cp == 1:
        return
    ring = plan.cp_exchange == "ring"
    times = _micro_batches(plan, workload) * _layers(model, plan)
    yield Technique(
        name=f"CP{cp}",
        cuts=f"the sequence in {2 * cp} pieces",
        collective="ring of K and V" if ring else "all-to-all of heads",
        per_step=f"{2 * (cp - 1) if ring else 8} a layer x {times:,} layer passes",
        runs_on=_wire(cluster, int(plan.layout.tp) * cp),
        **_seconds(step, "context_parallel"),
    )


def _experts(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, step: StepTime
) -> Iterator[Technique]:
    ep = int(plan.layout.ep)
    sparse = sum(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)
    if ep == 1 or not sparse:
        return
    times = _micro_batches(plan, workload) * -(-sparse // int(plan.layout.pp))
    etp = int(plan.expert_tp) if plan.expert_tp is not None else 1
    yield Technique(
        name=f"EP{ep}",
        cuts="whole experts over ranks",
        collective="all-to-all of tokens",
        per_step=f"4 a mixture layer x {times:,} layer passes",
        runs_on=_wire(cluster, ep * etp),
        **_seconds(step, "expert_exchange"),
    )


def _pipeline(cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, step: StepTime) -> Iterator[Technique]:
    layout = plan.layout
    if layout.pp == 1:
        return
    chunks = f", {layout.vpp} chunks a stage" if layout.vpp > 1 else ""
    times = 2 * _micro_batches(plan, workload) * int(layout.vpp)
    yield Technique(
        name=f"PP{layout.pp}" + (f" VPP{layout.vpp}" if layout.vpp > 1 else ""),
        cuts=f"layers over stages ({plan.schedule}{chunks})",
        collective="send and receive",
        per_step=f"{times:,} at each boundary; bubble {float(step.bubble_fraction):.1%} of the step",
        runs_on=_wire(cluster, int(layout.gpus)),
        **_seconds(step, "pipeline_exchange"),
    )


def _data(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, step: StepTime
) -> Iterator[Technique]:
    ranks = int(plan.layout.dp) * int(plan.layout.cp)
    if ranks == 1:
        return
    cuts = {
        0: "the batch",
        1: "the batch, optimizer state",
        2: "the batch, optimizer state, gradients",
        3: "the batch, optimizer state, gradients, weights",
    }[plan.zero]
    if plan.zero == 3:
        times = _micro_batches(plan, workload) * _layers(model, plan)
        gathers = 2 if plan.reshard else 1
        per_step, line = (
            f"{gathers} all-gathers and 1 reduce-scatter a layer x {times:,} layer passes",
            "sharded_weights",
        )
    else:
        per_step, line = "once", "data_parallel"
    yield Technique(
        name=f"DP{plan.layout.dp}" + (f" ZeRO-{plan.zero}" if plan.zero else ""),
        cuts=cuts,
        collective="all-reduce of gradients"
        if plan.zero == 0
        else "reduce-scatter of gradients, all-gather of weights",
        per_step=per_step,
        runs_on=_wire(cluster, int(plan.layout.tp) * ranks),
        **_seconds(step, line),
    )


def _elsewhere(model: Model, plan: TrainingPlan) -> Iterator[Technique]:
    """What trades compute, host memory or digits for memory."""
    how = plan.recompute
    if how.mode != "none":
        what = {"selective": ", ".join(how.parts), "op": "every second matrix product", "full": "whole layers"}[
            how.mode
        ]
        share = "" if how.layers is None else f" ({how.layers} of {_layers(model, plan)} layers a stage)"
        yield Technique(
            name="recompute", cuts=f"saved activations: {what}{share}", collective="none", per_step="once more forward",
            runs_on="each GPU",
        )  # fmt: skip
    if plan.offload.any:
        moved = [name for name in ("activations", "optimizer", "weights") if getattr(plan.offload, name)]
        yield Technique(
            name="offload", cuts=", ".join(moved), collective="copies to the host and back", per_step="once",
            runs_on="host link",
        )  # fmt: skip
    if plan.recipe.matmul != "same":
        yield Technique(
            name=plan.recipe.matmul.replace("_", " "), cuts="bits of matrix products", collective="none",
            per_step="every product", runs_on="each GPU",
        )  # fmt: skip
