"""All files of one training plan for one framework: flags or configuration, launchers, snippets of low precision."""

from __future__ import annotations

import importlib

from trilemma.engines.job_files import StartedProgram, TrainingJob, job_name, launch_files
from trilemma.errors import InputError, UnknownName
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import every, those
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


def training_files(
    *, to: str, model: Model, plan: TrainingPlan, workload: TrainingWorkload, gpus_per_node: int, domain: int = 8
) -> dict[str, str]:
    """File name → content for framework ``to``. ``domain`` is how many GPUs one fast link joins.

    Raises `InputError` for what the framework cannot run, `UnknownName` for a framework that is not written.
    """
    gpus = int(plan.layout.gpus)
    # A number of GPUs that fills no whole nodes is spread evenly over nodes.
    per_node = next(size for size in range(min(gpus_per_node, gpus), 0, -1) if gpus % size == 0)
    nodes = gpus // per_node
    name = job_name(model.name)
    traits = every().get(to)
    if traits is None or traits.writer is None:
        known = those("writer")
        raise UnknownName("framework", to, known, hint=f"training files are written for: {', '.join(known)}")
    if plan.mlp_tiles > 1:
        raise InputError(
            f"--to {to} writes no tiled feed-forward blocks; plan without --mlp-tiles, or set them up in the model"
        )
    if plan.cuda_graphs and traits.writer != "megatron":
        raise InputError(f"--to {to} writes no CUDA graphs; plan without --cuda-graphs, or export --to megatron")
    if (plan.overlap_expert or plan.fused_experts) and traits.writer != "megatron":
        raise InputError(
            f"--to {to} writes no --overlap-expert or --fused-experts; plan without, or export --to megatron"
        )
    home = importlib.import_module(f"trilemma.engines.{traits.writer}.deploy")
    started: StartedProgram = home.started(
        to=to, model=model, plan=plan, workload=workload, gpus=gpus, gpus_per_node=per_node
    )
    job = TrainingJob(
        name=name, program=started.program, nodes=nodes, gpus_per_node=per_node, domain_nodes=max(domain // per_node, 1),
        launcher=started.launcher, environment=started.environment, asked=started.asked,
    )  # fmt: skip
    files = dict(started.files) | launch_files(job)
    snippet = low_precision_snippet(plan)
    if snippet:
        files["low_precision.py"] = snippet
    return files


def low_precision_snippet(plan: TrainingPlan) -> str:
    """What sets the plan's matrix products by hand: Transformer Engine's recipe, or torchao's conversion."""
    kind = plan.recipe.matmul
    if kind == "same":
        return ""
    if every()[plan.implementation].transformer_engine:
        recipes = {
            "fp8_tensor": "Float8CurrentScaling()",
            "fp8_row": "Float8CurrentScaling()",
            "fp8_block": "Float8BlockScaling()",
            "mxfp8": "MXFP8BlockScaling()",
            "nvfp4": "NVFP4BlockScaling()",
        }
        call = recipes[kind]
        return (
            f'"""Transformer Engine: {kind} matrix products."""\n\n'
            f"import transformer_engine.pytorch as te\nfrom transformer_engine.common.recipe import {call.partition('(')[0]}\n\n"
            f"recipe = {call}\n\n\ndef forward(model, *inputs):\n    with te.fp8_autocast(enabled=True, fp8_recipe=recipe):\n"
            "        return model(*inputs)\n"
        )
    if kind in ("fp8_tensor", "fp8_row"):
        name = "TENSORWISE" if kind == "fp8_tensor" else "ROWWISE"
        return (
            f'"""torchao: {kind} matrix products under FSDP2."""\n\n'
            "from torchao.float8 import Float8LinearConfig, Float8LinearRecipeName, convert_to_float8_training\n\n"
            f"config = Float8LinearConfig.from_recipe_name(Float8LinearRecipeName.{name})\n\n\n"
            "def convert(model):\n"
            '    """Before fully_shard and torch.compile; the output layer stays as it is."""\n'
            "    return convert_to_float8_training(\n"
            '        model, config=config, module_filter_fn=lambda module, name: "lm_head" not in name and name != "output"\n'
            "    )\n"
        )
    return ""
