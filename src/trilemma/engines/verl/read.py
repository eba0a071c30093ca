"""A verl command: ``python -m verl.trainer.main_ppo key=value …``, or its supervised trainer under torchrun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trilemma.commands.launchers import split_launch
from trilemma.engines.preference import UPDATE_ONLY, frozen, generating, trained
from trilemma.engines.trainer import Values, from_overrides, trainer
from trilemma.engines.training import TrainingCommand, framework_facts
from trilemma.engines.transformers.run import Sharding, TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import trainer_run
from trilemma.errors import InputError, shorten
from trilemma.plans.companions import Frees
from trilemma.workloads import Method


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of the actor of a verl command, with what shares its cards. Raises `InputError`."""
    launch = split_launch(words)
    of = trainer("verl")
    given = from_overrides(launch.words)
    if "main_ppo" not in launch.script:
        facts = framework_facts("verl")
        meaning = {"seq": (), "prompt": (), **{key: tuple(value) for key, value in facts["sft"].items()}}
        supervised = replace(of, meaning=meaning, defaults={**of.defaults, **facts["sft_defaults"]}, keys=of.keys | {
            key for keys in facts["sft"].values() for key in keys
        })  # fmt: skip
        values = Values(trainer=supervised, given=given)
        run = _run(values)
        run.global_batch = values.whole("global_batch")
        moved = 1.0 if values.on("cpu_offload") else 0.0
        run.sharding.offload_optimizer = run.sharding.offload_weights = moved
        return assemble(run, launch, gpus=launch.gpus or gpus)
    values = Values(trainer=of, given=given)
    strategy = values.text("strategy") or "fsdp"
    if strategy not in ("fsdp", "fsdp2"):
        raise InputError(f"{values.found('strategy')[0]}={shorten(strategy)} is not read; fsdp and fsdp2 actors are")
    run = _run(values)
    nodes, per_node = values.whole("nodes") or 1, values.whole("gpus_per_node") or 1
    _batch(run, values, nodes * per_node)
    _beside(run, values)
    return assemble(run, replace(launch, nodes=nodes, per_node=per_node, total=None), gpus=gpus)


def _run(values: Values) -> TrainerRun:
    method: Method = "lora" if values.whole("rank", low=0) else "full"
    # FSDP shards held in model_dtype, FP32 unless told otherwise, and computed in BF16 (workers/fsdp_workers.py).
    narrow = (values.text("model_dtype") or "fp32").lower() in ("bf16", "bfloat16", "fp16", "float16")
    moved = 1.0 if values.on("offload_policy") else 0.0
    group = values.whole("group", low=-1)
    sharding = Sharding(
        by="ddp" if narrow else "fsdp", version=2 if values.text("strategy") == "fsdp2" else 1, zero=3,
        reshard=not values.has("reshard") or values.on("reshard"), group=group if group and group > 0 else None,
        offload_optimizer=moved, offload_weights=moved,
    )  # fmt: skip
    run = trainer_run(values, framework="accelerate", method=method, sharding=sharding)
    run.compute, run.dtype = "bf16", "bf16" if narrow else None
    run.attention = "flash"
    return run


def _batch(run: TrainerRun, values: Values, world: int) -> None:
    """Sequences of an update: ppo_mini_batch_size prompts of n answers; a micro-batch as stated, or as many as the tokens of a
    GPU hold."""
    run.seq = (values.whole("prompt") or 0) + (values.whole("completion") or 0)
    dp = max(world // run.cp, 1)
    wanted = (values.whole("global_batch") or 1) * (values.whole("samples") or 1)
    micro = run.micro_batch or 1
    if values.on("dynamic"):
        micro = max((values.whole("tokens_of_gpu") or run.seq) * run.cp // run.seq, 1)
    elif not values.has("micro_batch") and values.has("micro_batch_of_all"):
        micro = max((values.whole("micro_batch_of_all") or 1) // dp, 1)
    each = max(wanted // dp, 1)
    while each % micro:  # an uneven last micro-batch is never larger
        micro -= 1
    run.micro_batch, run.global_batch, run.accumulation = micro, each * dp, None


def _beside(run: TrainerRun, values: Values) -> None:
    if (values.on("kl_loss") or values.on("kl_reward")) and run.method == "full":
        # The worker forces the reference onto the host but when it runs (CPUOffload for every role but the actor).
        frozen(run, "reference model", offloaded=True, sharded=True)
    if values.on("critic") if values.has("critic") else values.text("estimator") == "gae":
        model = values.text("critic_model")
        trained(run, "critic", of=model, offloaded=values.on("critic_offload"))
    if values.on("reward"):
        frozen(run, "reward model", of=values.text("reward_model"), sharded=True)
    frees: Frees = "nothing"
    if values.on("optimizer_offload"):
        frees = "all" if values.on("param_offload") else "optimizer"
    generating(
        run,
        values.real("vllm_share") or 0.0,
        asleep=values.on("sleeps"),
        where=values.found("vllm_share")[0],
        frees=frees,
    )
    run.warnings.append(UPDATE_ONLY)
    run.generated = values.whole("completion")
