"""Which training layouts are legal: the rules, and the sentence with the fix for the one that is broken.

The same rules serve one plan, whose violation is an error, and a table of plans, whose violations are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans.frameworks import every, those
from trilemma.plans.pipeline import V_SHAPED
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


def training_violations(
    model: Model, plan: TrainingPlan, workload: TrainingWorkload, *, gpus: int | None = None
) -> Mapping[str, np.ndarray]:
    """For each rule, named by what it asks, whether each plan breaks it (broadcast over the plan's arrays).

    Head and layer counts as Megatron-LM and torchtitan ask; whole micro-batches; ``cp`` cuts a sequence in ``2 · cp`` pieces
    so that causal work is even; ``ep`` divides the experts and the ranks of a stage; interleaving deals micro-batches in
    rounds of ``pp`` (Narayanan et al. 2021, section 2.2).
    """
    layout = plan.layout
    tp, pp, vpp, dp, cp, ep = (np.asarray(getattr(layout, n)) for n in ("tp", "pp", "vpp", "dp", "cp", "ep"))
    micro = np.asarray(plan.micro_batch)
    broken: dict[str, np.ndarray] = {}
    if gpus is not None:
        broken[f"tp x pp x dp x cp is not the {gpus} GPUs"] = tp * pp * dp * cp != gpus
    broken |= _head_rules(model, plan, tp, cp)
    chunks = pp * (2 if plan.schedule in V_SHAPED else vpp)
    broken[f"more pipeline pieces than the {len(model.layers)} layers"] = chunks > len(model.layers)
    broken["chunks of a stage without a pipeline"] = (vpp > 1) & (pp == 1)
    broken["micro-batch x dp does not divide the global batch"] = workload.global_batch % (micro * dp) != 0
    count = workload.global_batch // np.maximum(micro * dp, 1)
    if plan.schedule == "interleaved":
        broken["interleaving needs micro-batches in multiples of pp"] = (vpp > 1) & (count % pp != 0)
    pieces = np.where(cp > 1, 2 * cp, 1) * np.where(plan.sp, tp, 1)
    broken[f"cp and tp do not cut the sequence of {workload.seq} evenly"] = workload.seq % pieces != 0
    broken |= _expert_rules(model, plan, tp, dp, cp, ep)
    traits = every()[plan.implementation]
    if plan.zero >= 2 and not traits.shards_beside_pipeline:
        broken["sharded gradients or weights (ZeRO-2, ZeRO-3) beside a pipeline"] = pp > 1
    if traits.equal_stages:
        layers = len(model.layers)
        possible = sorted({-(-(layers + ends) // size) for ends in (0, 2) for size in range(1, layers + 1)})
        broken[f"{traits.label} cuts layers into stages of one size"] = (vpp > 2) & ~np.isin(pp * vpp, possible)
    if not traits.cuts:
        # A device map spreads layers under any framework.
        broken["pipeline or expert parallelism"] = (1 if plan.schedule == "sequential" else pp) * ep > 1
    return broken


def _head_rules(model: Model, plan: TrainingPlan, tp: Any, cp: Any) -> dict[str, np.ndarray]:
    broken: dict[str, np.ndarray] = {}
    exchanged = cp if plan.cp_exchange == "all_to_all" else np.ones_like(cp)
    for count in sorted({mixer.heads for mixer in model.mixers}):
        recurrent = all(mixer.keeps_state for mixer in model.mixers if mixer.heads == count)
        name = "linear-attention heads" if recurrent else "attention heads"
        broken[f"tp does not divide the {count} {name}"] = count % (tp * exchanged) != 0
    for count in sorted({mixer.cache_heads for mixer in model.mixers if mixer.cache_heads is not None}):
        broken[f"tp and the {count} KV heads do not divide each other"] = (count % tp != 0) & (tp % count != 0)
    return broken


def _expert_rules(model: Model, plan: TrainingPlan, tp: Any, dp: Any, cp: Any, ep: Any) -> dict[str, np.ndarray]:
    experts = next((layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, ExpertFfn)), 0)
    if not experts:
        return {"expert parallelism without experts": np.asarray(ep > 1)}
    expert_tp = np.where(ep > 1, 1, tp) if plan.expert_tp is None else np.asarray(plan.expert_tp)
    return {
        f"ep does not divide the {experts} experts": experts % ep != 0,
        "ep does not divide the ranks of a stage": (tp * dp * cp) % (ep * expert_tp) != 0,
    }


def check_training_plan(
    model: Model, plan: TrainingPlan, workload: TrainingWorkload, *, gpus: int | None = None
) -> None:
    """Raise `InputError` with the values that would be right, where one plan breaks a rule."""
    for rule, broken in training_violations(model, plan, workload, gpus=gpus).items():
        if np.any(broken):
            raise InputError(_sentence(rule, model, plan, workload, gpus))


def _sentence(rule: str, model: Model, plan: TrainingPlan, workload: TrainingWorkload, gpus: int | None) -> str:
    layout, layers = plan.layout, len(model.layers)
    ranks = int(layout.tp) * int(layout.dp) * int(layout.cp)
    if rule.startswith("tp x pp"):
        product = int(layout.gpus)
        fitting = f"--dp {(gpus or 1) // max(product // int(layout.dp), 1)}"
        return (
            f"--tp {layout.tp} x --pp {layout.pp} x --dp {layout.dp} x --cp {layout.cp} is {product} GPUs, not the {gpus}"
            f" of --gpu; use {fitting} or leave --dp out"
        )
    if rule.startswith(("tp does", "tp and")):
        good = [str(tp) for tp in range(1, 129) if _good_tp(model, plan, workload, tp, rule)]
        return f"--tp {layout.tp}: {rule} of {model.name}; use {_either(good)}"
    if rule.startswith("more pipeline"):
        chunks = f" with --vpp {layout.vpp}" if layout.vpp > 1 else ""
        return f"--pp {layout.pp}{chunks}: {rule} of {model.name}; use at most {layers} stages times chunks"
    if rule.startswith("chunks"):
        return f"--vpp {layout.vpp}: {rule}; leave --vpp out or raise --pp"
    if rule.startswith("micro-batch x dp"):
        good = (
            [str(n) for n in _divisors(workload.global_batch // int(layout.dp))] if _whole(workload, layout.dp) else []
        )
        fix = f"use --micro-batch {_either(good[:8])}" if good else f"make --global-batch a multiple of {layout.dp}"
        given = f"--micro-batch {plan.micro_batch} x --dp {layout.dp}"
        return f"{given} does not divide --global-batch {workload.global_batch}; {fix}"
    if rule.startswith("interleaving"):
        count = workload.global_batch // (int(plan.micro_batch) * int(layout.dp))
        return f"--vpp {layout.vpp}: {count} micro-batches are no multiple of --pp {layout.pp}; use --vpp 1 or more of them"
    if rule.startswith("cp and tp"):
        return f"--cp {layout.cp} with --tp {layout.tp}: {rule}; use smaller degrees or a longer --train"
    if rule.startswith("ep does not divide the ranks"):
        good = [str(n) for n in _divisors(ranks)]
        return f"--ep {layout.ep} does not divide the {ranks} ranks of a stage (tp x dp x cp); use {_either(good[:10])}"
    if rule.startswith("ep does"):
        return f"--ep {layout.ep}: {rule} of {model.name}; use a divisor"
    if rule.startswith("expert"):
        return f"--ep {layout.ep}: {rule} in {model.name}; leave --ep out"
    if rule.endswith("stages of one size"):
        return f"--pp {layout.pp} with --vpp {layout.vpp}: {rule}; use --vpp 1 or 2"
    if rule.startswith("pipeline or"):
        return (
            f"{rule} does not run on {plan.implementation}; leave --pp and --ep out or use --engine {those('cuts')[0]}"
        )
    return f"--zero {plan.zero} with --pp {layout.pp}: {rule} does not run on {plan.implementation}; use --zero 1 or --pp 1"


def _whole(workload: TrainingWorkload, dp: Any) -> bool:
    return workload.global_batch % int(dp) == 0


def _good_tp(model: Model, plan: TrainingPlan, workload: TrainingWorkload, tp: int, rule: str) -> bool:
    from dataclasses import replace

    other = replace(plan, layout=replace(plan.layout, tp=tp))
    return not np.any(training_violations(model, other, workload).get(rule, np.array(False)))


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"
