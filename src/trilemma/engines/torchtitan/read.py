"""A torchtitan command to a training plan: FSDP2 or HSDP, tensor, pipeline, context and expert parallel, recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trilemma.commands.launchers import LauncherCommand, split_launch
from trilemma.commands.option_words import whole
from trilemma.engines.torchtitan.settings import TorchtitanSettings, settings_of
from trilemma.engines.training import TrainingCommand, framework_facts, replicas, steps_per_batch, unknown_warning
from trilemma.errors import GpusUnsaid, InputError, PlanWarning, shorten
from trilemma.models.resolve import load_model
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Loss, Matmul, Offload, Optimizer, Recompute, Schedule, TrainingPlan, TrainingRecipe
from trilemma.quantities import ceil_div
from trilemma.workloads import TrainingWorkload

#: torch.distributed.pipelining's names → schedule, and whether it cuts each stage into chunks.
SCHEDULES: dict[str, tuple[Schedule, bool]] = {
    "1F1B": ("1f1b", False), "GPipe": ("gpipe", False), "Interleaved1F1B": ("interleaved", True),
    "ZBVZeroBubble": ("zbv", True), "DualPipeV": ("dualpipev", True), "InterleavedZeroBubble": ("zb-h1", True),
}  # fmt: skip
_RECOMPUTE = {"none": "none", "full": "full", "selective": "op", "memory-budget": "op", "memory_budget": "op"}
#: Versions before 0.3 stated recipes of FP8 in these words.
_MATMUL: dict[str, Matmul] = {
    "rowwise": "fp8_row", "rowwise_with_gw_hp": "fp8_row", "tensorwise": "fp8_tensor", "fp8_row": "fp8_row",
    "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip

_SCRIPT = "run_train.sh"


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a ``torchtitan.train`` command (or of run_train.sh). Raises `InputError`."""
    launch = split_launch(words)
    by_script = launch.script == _SCRIPT
    per_node = _gpus_of_script(launch) if by_script else launch.gpus_per_node
    world = per_node * (launch.nodes or 1) if by_script and per_node else launch.gpus or gpus
    if world is None:
        raise GpusUnsaid
    settings = settings_of(launch.words, launch.environment, started_by_script=by_script)
    model = load_model(settings.model)
    facts = framework_facts("torchtitan")
    warnings = list(unknown_warning(settings.unknown, (f"--{key}" for key in facts["keys"]), where="torchtitan"))
    if settings.old:
        text = "a job file of torchtitan 0.2 or older: newer versions take --module, --config and flags"
        if settings.version is not None:
            text += f"; its words are of {settings.version} or before, whose memory is judged"
        warnings.append(PlanWarning(code="old-torchtitan", message=text))
    warnings += [PlanWarning(code="assumed-file", message=note) for note in settings.notes]
    layout, group = _layout(settings, world, len(model.layers))
    micro, batch = _batch(settings, layout)
    plan = _plan(settings, layout, group, micro, warnings)
    seq = settings.whole("training.seq_len", default=facts["defaults"]["seq_len"])
    return TrainingCommand(
        framework="torchtitan",
        model=settings.model,
        architecture=model,
        plan=plan,
        workload=TrainingWorkload(seq=seq, global_batch=batch, tokens=_tokens(settings, batch, seq)),
        gpus=world,
        gpus_per_node=per_node,
        unknown_flags=settings.unknown,
        warnings=tuple(warnings),
        facts={"configuration": settings.named},
    )


def _gpus_of_script(launch: LauncherCommand) -> int:
    """run_train.sh starts ``NGPU`` processes on one node, 8 where nothing is said."""
    return whole(launch.environment.get("NGPU", "8"), "NGPU", high=2**10)


def _layout(settings: TorchtitanSettings, world: int, layers: int) -> tuple[Layout, int | None]:
    """Degrees and the group that shards (None: all data-parallel ranks). ``dp`` is replicas times shards."""
    tp = settings.whole("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree", default=1)
    pp = settings.whole("parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree", default=1)
    cp = settings.whole("parallelism.context_parallel_degree", "experimental.context_parallel_degree", default=1)
    names = ("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree")
    replicate = settings.whole(*names, default=1)
    names = ("parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree")
    shard = settings.whole(*names, default=-1, low=-1)
    prefix = "--parallelism."
    given = {
        f"{prefix}tensor_parallel_degree": tp, f"{prefix}pipeline_parallel_degree": pp,
        f"{prefix}context_parallel_degree": cp, f"{prefix}data_parallel_replicate_degree": replicate,
    }  # fmt: skip
    if shard in (-1, 0):
        shard = replicas(world, given=given)
    elif tp * pp * cp * replicate * shard != world:
        raise InputError(
            f"torchtitan's degrees multiply to {tp * pp * cp * replicate * shard}, not to the {world} GPUs; leave"
            " --parallelism.data_parallel_shard_degree at -1 to take the rest"
        )
    ep = settings.whole("parallelism.expert_parallel_degree", default=1)
    if (shard * cp * tp) % ep:
        raise InputError(
            f"--parallelism.expert_parallel_degree {ep} does not divide the {shard * cp * tp} ranks of a stage"
        )
    vpp = _chunks(settings, pp, layers)
    layout = Layout(tp=tp, pp=pp, cp=cp, dp=replicate * shard, ep=ep, vpp=vpp)
    return layout, shard * cp if replicate > 1 else None


def _chunks(settings: TorchtitanSettings, pp: int, layers: int) -> int:
    """Chunks of each stage (torchtitan/distributed/pipeline_parallel.py): two for looped schedules, or as stated layers give."""
    if pp == 1:
        return 1
    looped = _schedule(settings)[1]
    stated = settings.whole("parallelism.pipeline_parallel_layers_per_stage", default=0, low=0)
    if not stated:
        return 2 if looped else 1
    ends = settings.whole("parallelism.pipeline_parallel_first_stage_less_layers", default=1, low=0)
    ends += settings.whole("parallelism.pipeline_parallel_last_stage_less_layers", default=1, low=0)
    total = int(ceil_div(layers + ends, stated))
    if total % pp:
        raise InputError(
            f"--parallelism.pipeline_parallel_layers_per_stage {stated} makes {total} stages, no multiple of the {pp} ranks;"
            " use another number of layers"
        )
    return total // pp


def _schedule(settings: TorchtitanSettings) -> tuple[Schedule, bool]:
    name = settings.text(
        "parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule", default="1F1B"
    )
    found = {key.lower(): value for key, value in SCHEDULES.items()}
    if name.lower() not in found:
        raise InputError(
            f"--parallelism.pipeline_parallel_schedule {shorten(name)!r} is not read; use {', '.join(SCHEDULES)}"
        )
    return found[name.lower()]


def _batch(settings: TorchtitanSettings, layout: Layout) -> tuple[int, int]:
    """(micro-batch, global batch). With a pipeline the local batch is cut further, without one it is the micro-batch."""
    default = framework_facts("torchtitan")["defaults"]["local_batch_size"]
    local = settings.whole("training.local_batch_size", "training.batch_size", default=default)
    dp = int(layout.dp)
    batch = settings.whole("training.global_batch_size", default=-1, low=-1)
    batch = local * dp if batch < 1 else batch
    steps_per_batch(global_batch=batch, micro_batch=local, dp=dp, flag="--training.global_batch_size")
    if layout.pp == 1:
        return local, batch
    piece = settings.whole("parallelism.pipeline_parallel_microbatch_size", default=1)
    if local % piece:
        raise InputError(
            f"--parallelism.pipeline_parallel_microbatch_size {piece} does not divide --training.local_batch_size {local};"
            " use a divisor"
        )
    return piece, batch


def _plan(
    settings: TorchtitanSettings, layout: Layout, group: int | None, micro: int, warnings: list[PlanWarning]
) -> TrainingPlan:
    components = settings.values.get("compile.components", ["model", "loss"])
    compiled = settings.on("compile.enable", "training.compile") and "model" in components
    # Without sharding degrees above one there is no FSDP: replicas alone are DDP.
    sharded = (group or int(layout.dp) * int(layout.cp)) > 1
    tp = int(layout.tp)
    sequence = settings.values.get("parallelism.enable_sequence_parallel", True)
    chunks = settings.whole("loss.num_chunks", default=0, low=0)
    loss: Loss = "chunked" if chunks > 1 else "full"
    reshard = settings.text("parallelism.fsdp_reshard_after_forward", default="default")
    return TrainingPlan(
        layout=layout,
        micro_batch=micro,
        implementation="torchtitan",
        version=settings.version,
        recipe=_recipe(settings),
        optimizer=_optimizer(settings, warnings),
        sp=tp > 1 and sequence not in (False, "false", "False"),
        expert_tp=1 if layout.ep > 1 else None,
        zero=3 if sharded else 0,
        shard_group=group if sharded else None,
        reshard=reshard == "always" or (reshard == "default" and layout.pp == 1),
        recompute=_recompute(settings, warnings),
        schedule=_schedule(settings)[0] if layout.pp > 1 else "1f1b",
        attention="sdpa",
        compiled=compiled,
        loss=loss,
        loss_chunks=max(chunks, 1),
        offload=Offload(optimizer=1.0, weights=1.0) if settings.on("training.enable_cpu_offload") else Offload(),
        optimizer_in_backward=settings.on("optimizer.early_step_in_backward"),
        overlap_tensor=settings.on("compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"),
    )


def _recipe(settings: TorchtitanSettings) -> TrainingRecipe:
    narrow = settings.text("training.dtype") == "bfloat16"
    base = recipe("pure-bf16") if narrow else recipe("fsdp")
    if settings.text("training.mixed_precision_param", default="bfloat16") == "float32":
        base = recipe("fp32")
    matmul = settings.text("model.matmul")
    converters = settings.values.get("model.converters", [])
    if not matmul and (settings.on("float8.enable_float8_linear") or "float8" in str(converters)):
        names = ("float8.recipe_name", "quantize.linear.float8.recipe_name")
        matmul = settings.text(*names, default="tensorwise")
    if not matmul and "mx" in str(converters):
        matmul = "mxfp8"
    if not matmul:
        return base
    if matmul not in _MATMUL:
        raise InputError(f"recipe {shorten(matmul)!r} of low precision is not known; use {', '.join(_MATMUL)}")
    kind = _MATMUL[matmul]
    narrowed = base if narrow else recipe("fsdp-fp8")
    return narrowed if kind == narrowed.matmul else replace(narrowed, name=f"{base.name}-{kind}", matmul=kind)


def _optimizer(settings: TorchtitanSettings, warnings: list[PlanWarning]) -> Optimizer:
    name = settings.text("optimizer.name", default="AdamW").lower()
    if settings.text("optimizer.implementation") == "fused_opt_states_bf16":
        return optimizer("adamw-bf16-moments")
    # torch.optim makes moments like the parameters: BF16 where these are (training.dtype).
    if name in ("adam", "adamw"):
        return optimizer("adamw-like-weights")
    if name not in ("muon", "sgd"):
        message = f"optimizer {shorten(name)} is not known here; counted as AdamW"
        warnings.append(PlanWarning(code="assumed-optimizer", message=message))
        return optimizer("adamw-like-weights")
    return optimizer(name)


def _recompute(settings: TorchtitanSettings, warnings: list[PlanWarning]) -> Recompute:
    mode = settings.text("activation_checkpoint.mode", default="selective")
    if mode not in _RECOMPUTE:
        raise InputError(f"activation checkpointing {shorten(mode)!r} is not known; use none, selective or full")
    if mode.startswith("memory"):
        message = "activation checkpointing by memory budget is counted as selective"
        warnings.append(PlanWarning(code="not-counted", message=message))
    option = settings.text("activation_checkpoint.selective_ac_option", default="op")
    if mode == "selective" and option.isdecimal() and int(option) > 0:
        # Every n-th layer is checkpointed whole; the noun counts layers of a stage, so only n = 1 is exact.
        if int(option) > 1:
            text = f"selective checkpointing of every {option}th layer is counted as op-level"
            warnings.append(PlanWarning(code="not-counted", message=text))
            return Recompute(mode="op")
        return Recompute(mode="full")
    if _RECOMPUTE[mode] == "full":
        return Recompute(mode="full")
    return Recompute(mode="op") if _RECOMPUTE[mode] == "op" else Recompute()


def _tokens(settings: TorchtitanSettings, batch: int, seq: int) -> float | None:
    steps = settings.whole("training.steps", default=0, low=0)
    return float(steps) * batch * seq if steps else None
