"""A training plan to Megatron's flags; `trilemma.engines.megatron.read` reads back the same plan."""

from __future__ import annotations

from trilemma.engines.megatron.architecture import flags_of_model
from trilemma.errors import InputError
from trilemma.models.architecture import Model
from trilemma.models.catalogue import hub_id
from trilemma.plans.pipeline import piece_sizes
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

_MATMUL = {
    "fp8_tensor": ["--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"],
    "fp8_block": ["--fp8-format", "e4m3", "--fp8-recipe", "blockwise"],
    "mxfp8": ["--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"],
    "nvfp4": ["--fp4-format", "e2m1"],
}
_OPTIMIZERS = {"adamw": "adam", "adamw-bf16-moments": "adam", "sgd-momentum": "sgd", "muon": "muon", "lion": "lion"}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_SCHEDULES = ("1f1b", "interleaved")


def write(*, model: Model, plan: TrainingPlan, workload: TrainingWorkload) -> list[str]:
    """Flags of pretrain_gpt.py for ``plan``. Raises `InputError` for what Megatron-LM cannot do."""
    if workload.trains_adapters:
        raise InputError(f"--to megatron writes no {workload.method} training; use --to accelerate or --to deepspeed")
    if plan.schedule not in _SCHEDULES:
        raise InputError(f"Megatron-LM has no schedule {plan.schedule}; use {' or '.join(_SCHEDULES)}")
    layout = plan.layout
    words = flags_of_model(model, mtp=plan.mtp)
    words += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", hub_id(model.name)]
    words += ["--tensor-model-parallel-size", str(layout.tp), "--pipeline-model-parallel-size", str(layout.pp)]
    words += _chunks(plan, model)
    if layout.cp > 1:
        words += ["--context-parallel-size", str(layout.cp)]
        words += ["--cp-comm-type", "a2a" if plan.cp_exchange == "all_to_all" else "p2p"]
    if layout.ep > 1:
        etp = plan.expert_tp if plan.expert_tp is not None else 1
        words += ["--expert-model-parallel-size", str(layout.ep), "--expert-tensor-parallel-size", str(etp)]
    words += ["--sequence-parallel"] if plan.sp and layout.tp > 1 else []
    words += ["--micro-batch-size", str(plan.micro_batch), "--global-batch-size", str(workload.global_batch)]
    words += ["--seq-length", str(workload.seq)]
    if workload.tokens is not None:
        words += ["--train-samples", str(max(round(workload.tokens / workload.seq), 1))]
    words += [*_state(plan), *_recipe(plan), *_recompute(plan), *_offload(plan, model)]
    words += ["--tp-comm-overlap"] if plan.overlap_tensor and layout.tp > 1 else []
    words += ["--attention-backend", "unfused" if plan.attention == "eager" else "flash"]
    words = _dispatched(words, plan)
    words += [] if plan.hidden_dropout else ["--hidden-dropout", "0.0"]
    words += [] if plan.attention_dropout else ["--attention-dropout", "0.0"]
    if plan.loss in ("fused", "compiled"):
        kind = "linear" if plan.loss == "fused" else "native"
        words += ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", kind]
    return words


def _dispatched(words: list[str], plan: TrainingPlan) -> list[str]:
    """``words`` with the dispatcher of ``plan`` in place of all-to-all, graphs of layers or of the step, and fused kernels."""
    if plan.dispatcher in ("deepep", "hybridep") and "alltoall" in words:
        at = words.index("alltoall")
        words = [*words[:at], "flex", "--moe-flex-dispatcher-backend", str(plan.dispatcher), *words[at + 1 :]]
    if plan.dispatcher == "padded" and "alltoall" in words:
        words = [*words, "--moe-expert-capacity-factor", "1.0", "--moe-pad-expert-input-to-capacity"]
    if plan.cuda_graphs:
        words = [*words, "--cuda-graph-impl", "full_iteration" if plan.step_graph else "local"]
    words = [*words, *(["--overlap-moe-expert-parallel-comm"] if plan.overlap_expert else [])]
    return [*words, *(["--use-transformer-engine-op-fuser"] if plan.fused_experts else [])]


def _chunks(plan: TrainingPlan, model: Model) -> list[str]:
    """How layers fall on stages: by number where they divide, else as a layout text."""
    layers, pp, vpp = len(model.layers), int(plan.layout.pp), int(plan.layout.vpp)
    sizes = plan.pipeline_layers
    if sizes is None and layers % (pp * vpp) == 0 and not (pp > 1 and plan.mtp and model.mtp_layers):
        return ["--num-virtual-stages-per-pipeline-rank", str(vpp)] if vpp > 1 else []
    if sizes is not None and vpp == 1 and len(set(sizes[1:-1])) <= 1:
        return [
            "--decoder-first-pipeline-num-layers",
            str(sizes[0]),
            "--decoder-last-pipeline-num-layers",
            str(sizes[-1]),
        ]
    mtp = len(model.mtp_layers) if plan.mtp else 0
    if sizes is None and (layers + 2) % (pp * vpp) == 0 and not mtp:
        chunks = ["--num-virtual-stages-per-pipeline-rank", str(vpp)] if vpp > 1 else []
        return [*chunks, "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    return ["--pipeline-model-parallel-layout", layout_text(layers, pp, vpp, sizes, mtp)]


def layout_text(layers: int, pp: int, vpp: int, sizes: tuple[int, ...] | None, mtp: int = 0) -> str:
    """``Ett|ttt|…|ttL``: one word a chunk, ``layers`` over ``pp · vpp`` chunks as evenly as they go."""
    chunks = ["t" * count for count in piece_sizes(layers, pp, vpp, mtp=mtp, sizes=sizes)]
    chunks[0] = "E" + chunks[0]
    chunks[-1] += "m" * mtp + "L"
    return "|".join(chunks)


def _state(plan: TrainingPlan) -> list[str]:
    name = plan.optimizer.name
    if name not in _OPTIMIZERS:
        raise InputError(f"Megatron-LM has no optimizer {name}; use {', '.join(_OPTIMIZERS)}")
    words = ["--optimizer", _OPTIMIZERS[name]]
    if name == "adamw-bf16-moments":
        words += ["--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"]
    if plan.zero == 1:
        words.append("--use-distributed-optimizer")
        if plan.shard_group is not None:
            copies = int(plan.layout.dp) * int(plan.layout.cp) // int(plan.shard_group)
            words += ["--num-distributed-optimizer-instances", str(copies)]
    elif plan.zero >= 2:
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", _SHARDING[plan.zero]]
        words += ["--use-distributed-optimizer"]
    if plan.overlap_data is not False:
        words += ["--overlap-grad-reduce"]
        words += ["--overlap-param-gather"] if plan.zero else []
    return words


def _recipe(plan: TrainingPlan) -> list[str]:
    recipe = plan.recipe
    if recipe.weights == "fp32" and recipe.gathered == "fp32":
        return []
    half = "fp16" if recipe.activations == "fp16" else "bf16"
    words = [f"--{half}", *_MATMUL.get(recipe.matmul, [])]
    if recipe.weights.startswith("fp8"):
        words.append("--fp8-param-gather")
    if recipe.gradients == "bf16":
        words.append("--grad-reduce-in-bf16")
    elif half == "fp16" and recipe.gradients == "fp32":
        words.append("--accumulate-allreduce-grads-in-fp32")
    return words


def _recompute(plan: TrainingPlan) -> list[str]:
    how = plan.recompute
    if how.mode == "none":
        return []
    if how.mode == "op":
        raise InputError("Megatron-LM has no op-level recompute; use selective or full")
    if how.mode == "selective":
        return ["--recompute-granularity", "selective", "--recompute-modules", *how.parts]
    if how.layers is None:
        return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    per_chunk = -(-how.layers // int(plan.layout.vpp))
    return ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", str(per_chunk)]


def _offload(plan: TrainingPlan, model: Model) -> list[str]:
    words = []
    if plan.offload.optimizer:
        words += ["--optimizer-cpu-offload", "--optimizer-offload-fraction", f"{plan.offload.optimizer:g}"]
        if plan.offload.masters and plan.optimizer.name != "adamw-bf16-moments":
            words.append("--use-precision-aware-optimizer")
    if plan.offload.activations:
        words += ["--cpu-offloading-num-layers", str(round(plan.offload.activations * len(model.layers)))]
    return words
