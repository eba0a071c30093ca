"""All files of one training plan for one framework: flags or configuration, launchers, snippets of low precision."""

from __future__ import annotations

from trilemma.engines.job_files import Asked, Job, job_name, launch_files
from trilemma.errors import UnknownName
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

#: What ``export --to`` takes for training plans.
TARGETS = ("megatron", "torchtitan", "deepspeed", "accelerate")
_DEVICE_CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "1")


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
    program: tuple[str, ...]
    launcher: tuple[str, ...] = ("torchrun",)
    environment: tuple[tuple[str, str], ...] = ()
    asked: tuple[Asked, ...] = ()
    files: dict[str, str] = {}
    if to == "megatron":
        from trilemma.engines.megatron.write import write

        program = ("pretrain_gpt.py", *write(model=model, plan=plan, workload=workload))
        # Megatron-LM's order of collectives and products relies on one queue before Blackwell (arguments.py).
        environment = (_DEVICE_CONNECTIONS,) if plan.layout.tp > 1 or plan.layout.cp > 1 else ()
        asked = _of_megatron(program, workload)
    elif to == "torchtitan":
        from trilemma.engines.torchtitan.write import write as write_torchtitan

        program = ("-m", "torchtitan.train", *write_torchtitan(model=model, plan=plan, workload=workload))
    elif to in ("deepspeed", "accelerate"):
        from trilemma.engines.transformers.write import accelerate_yaml, check, deepspeed_json, flags

        check(plan, to=to)
        words = flags(model=model, plan=plan, workload=workload)
        if to == "deepspeed":
            files["ds_config.json"] = deepspeed_json(plan=plan, workload=workload)
            program = ("train.py", "--deepspeed", "ds_config.json", *words)
        else:
            files["accelerate.yaml"] = accelerate_yaml(plan=plan, gpus=gpus, gpus_per_node=per_node)
            launcher = ("accelerate", "launch", "--config_file", "accelerate.yaml")
            program = ("train.py", *words)
    else:
        raise UnknownName("framework", to, TARGETS, hint=f"training files are written for: {', '.join(TARGETS)}")
    job = Job(
        name=name, program=program, nodes=nodes, gpus_per_node=per_node, domain_nodes=max(domain // per_node, 1),
        launcher=launcher, environment=environment, asked=asked,
    )  # fmt: skip
    files |= launch_files(job)
    snippet = low_precision_snippet(plan)
    if snippet:
        files["low_precision.py"] = snippet
    return files


def _of_megatron(program: tuple[str, ...], workload: TrainingWorkload) -> tuple[Asked, ...]:
    """What Megatron-LM needs beside a plan: it has no defaults for these, or ones that are another model's."""
    asked = [
        Asked(flag="--data-path", variable="DATA_PATH", meaning="prefix of the preprocessed data, without .bin"),
        Asked(flag="--lr", variable="LEARNING_RATE", meaning="peak learning rate"),
    ]
    if workload.tokens is None:
        asked.append(Asked(flag="--train-iters", variable="TRAIN_ITERS", meaning="optimizer steps of the run"))
    if "rope" in program:
        meaning = "base of the rotary embedding, rope_theta in the config.json of the model"
        asked.append(Asked(flag="--rotary-base", variable="ROTARY_BASE", meaning=meaning))
    return tuple(asked)


def low_precision_snippet(plan: TrainingPlan) -> str:
    """What sets the plan's matrix products by hand: Transformer Engine's recipe, or torchao's conversion."""
    kind = plan.recipe.matmul
    if kind == "same":
        return ""
    if plan.implementation in ("megatron",):
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
