"""What a fine-tuning run states, from whatever file it came, and the training plan that it makes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trilemma.commands.launchers import LauncherCommand
from trilemma.engines.training import TrainingCommand, framework_facts, replicas
from trilemma.engines.transformers.formats import optimizer_of, recipe_of
from trilemma.errors import GpusUnsaid, InputError, PlanWarning, shorten
from trilemma.memory.adapters import is_target_name
from trilemma.models.architecture import Model
from trilemma.models.naming import without_url
from trilemma.models.resolve import load_model
from trilemma.plans.companions import Companion
from trilemma.plans.frameworks import every
from trilemma.plans.plan import Layout
from trilemma.plans.training import (
    Attention,
    Dispatcher,
    Implementation,
    Loss,
    Offload,
    Recompute,
    TrainingPlan,
)
from trilemma.quantities import ceil_div
from trilemma.workloads import QLORA_FORMAT, Examples, Method, TrainingWorkload

#: What a name of a layer never holds and a pattern of names does; words of a pattern that may be names.
_PATTERN = re.compile(r"[\\*+?()\[\]|^$]")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(kw_only=True, slots=True)
class Sharding:
    """How state is spread: ZeRO stage (FSDP: 3, or 2 without freeing gathered blocks), group, offload, who does it.

    ``gradients`` is a format that a DeepSpeed file asks for; ``version`` that of FSDP; ``hybrid``: nodes hold copies, each of
    which is sharded inside.
    """

    by: str = "ddp"
    version: int | None = None
    hybrid: bool = False
    zero: int = 0
    group: int | None = None
    reshard: bool = True
    offload_optimizer: float = 0.0
    offload_weights: float = 0.0
    gradients: str | None = None
    checkpointing: bool = False


@dataclass(kw_only=True, slots=True)
class TrainerRun:
    """One run as its files state it; None stands for what they do not say.

    ``sequences`` make one example: two of a preference, chosen and rejected, which pass through the model together.
    """

    framework: Implementation
    model: str
    micro_batch: int | None
    seq: int | None
    sharding: Sharding = field(default_factory=Sharding)
    accumulation: int | None = None
    global_batch: int | None = None
    compute: str = "fp32"
    dtype: str | None = None
    optimizer: str = "adamw_torch"
    checkpointing: bool = False
    method: Method = "full"
    #: Adapters are DoRA's: of `method` where the model is as published, beside it where it is quantised.
    dora: bool = False
    rank: int = 0
    targets: tuple[str, ...] = ()
    base_format: str | None = None
    #: What a quantiser leaves as it was is turned into: None as the framework does, "stored" stays.
    kept_format: str | None = None
    #: Adapters in the format of the model; PEFT holds those of a 16-bit model in FP32.
    narrow_adapters: bool = False
    attention: Attention = "sdpa"
    loss: Loss = "full"
    loss_tile: int | None = None
    fused_layers: bool = False
    compiled: bool = False
    activation_offload: bool = False
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    dispatcher: Dispatcher | None = None
    steps: int | None = None
    sequences: int = 1
    examples: Examples = "capped"
    #: One process spreads the layers over the cards that it sees (``device_map``), which work one after the other.
    spread: bool = False
    generated: int | None = None
    in_backward: bool = False
    #: Rank to which an optimizer projects gradients (None: its own), and how many layers are trained at a time.
    projected: int | None = None
    trained_layers: int | None = None
    #: Feed-forward blocks run in pieces of the sequence: so many, or of so many tokens (None: as many as a layer is wide).
    tiled: bool = False
    mlp_tiles: int | None = None
    tile_tokens: int | None = None
    companions: list[Companion] = field(default_factory=list)
    #: The model itself where the command describes it.
    architecture: Model | None = None
    unknown: tuple[str, ...] = ()
    warnings: list[PlanWarning] = field(default_factory=list)


def assemble(
    run: TrainerRun,
    launch: LauncherCommand,
    *,
    gpus: int | None,
    processes: int | None = None,
    nodes: int | None = None,
) -> TrainingCommand:
    """The training command that ``run`` makes on the processes that its launcher or file states.

    ``processes`` and ``nodes`` are what a configuration file says; the launcher's own numbers go before it. Raises `InputError`.
    """
    world = launch.gpus or processes or gpus
    if world is None:
        raise GpusUnsaid
    if run.sharding.hybrid:
        run.sharding.group = _group_of_node(launch, world, nodes)
    dp = replicas(world, given={"tensor parallel": run.tp, "context parallel": run.cp, "pipeline parallel": run.pp})
    run.model = without_url(run.model)
    warnings = list(run.warnings)
    micro, batch = (run.sequences * one for one in _batches(run, dp, warnings))
    model = run.architecture or load_model(run.model)
    if run.seq is None:
        seq = int(framework_facts("transformers_flags")["defaults"]["max_length"])
        text = f"sequences of {seq:,} tokens assumed (SFTConfig's default); give --max_length"
        warnings.append(PlanWarning(code="assumed-length", message=text))
    else:
        seq = run.seq
    targets = _targets(run, model, warnings)
    return TrainingCommand(
        framework=run.framework,
        model=run.model,
        architecture=model,
        plan=_plan(
            run, Layout(tp=run.tp, cp=run.cp, pp=run.pp, ep=run.ep, dp=dp), micro, warnings, tiles=_tiles(run, model, seq)
        ),
        workload=TrainingWorkload(
            seq=seq, global_batch=batch, method="dora" if _on_quantised(run) else run.method,
            rank=run.rank if run.method != "full" else 0,
            targets=targets, base_format=_base(run), kept_format=_kept(run), examples=run.examples,
            trained_layers=run.trained_layers,
            tokens=float(run.steps) * batch * seq if run.steps else None,
        ),
        gpus=world,
        gpus_per_node=launch.gpus_per_node or (world // nodes if nodes and world % nodes == 0 else None),
        unknown_flags=run.unknown,
        warnings=tuple(warnings),
        generated=run.generated,
    )  # fmt: skip


def _base(run: TrainerRun) -> str | None:
    """What frozen weights are stored in: as asked for, or FP32 where the model is loaded so and nothing turns it (DeepSpeed casts
    a model to its own format, FSDP's shards are of one)."""
    loaded = run.method in ("lora", "dora") and run.dtype == "fp32" and run.sharding.by == "ddp"
    return run.base_format or ("fp32" if loaded else QLORA_FORMAT if _on_quantised(run) else None)


def _on_quantised(run: TrainerRun) -> bool:
    """DoRA beside weights of QLoRA (PEFT's tuners/lora/dora.py dequantises them for the norm)."""
    return run.dora and run.method == "qlora"


def _kept(run: TrainerRun) -> str | None:
    """What PEFT's preparation of a model that bitsandbytes quantised turns its other parameters into."""
    if _base(run) == "fp32":
        return "fp32"
    asked = run.kept_format or every()[run.framework].kept_beside_quantised
    quantised = run.method == "qlora" or run.base_format is not None
    return asked if quantised and asked != "stored" else None


def _targets(run: TrainerRun, model: Model, warnings: list[PlanWarning]) -> tuple[str, ...]:
    """The layers with adapters that ``model`` has. PEFT takes one text for a pattern of module names: its words are looked
    for, and it is never run. Where nothing is found, every linear layer gets an adapter, which is said."""
    if run.method == "full" or not run.targets:
        return ()
    pattern = len(run.targets) == 1 and _PATTERN.search(run.targets[0]) is not None
    asked = tuple(dict.fromkeys(_WORD.findall(run.targets[0][:4096]))) if pattern else run.targets
    asked = tuple(name.rpartition(".")[2] if name.endswith(("_proj", "_a", "_b")) else name for name in asked)
    leaves = {tensor.name.removesuffix(".weight").rpartition(".")[2] for tensor in model.of_part("layers")}
    found = tuple(
        name
        for name in asked
        if (not pattern or name in leaves) and any(is_target_name(tensor, name) for tensor in model.tensors)
    )
    missing = [name for name in asked if name not in found]
    if not found:
        text = f"targets {shorten(', '.join(run.targets))} name no layer of {model.name}; adapters counted on every linear layer"
        warnings.append(PlanWarning(code="assumed-targets", message=text))
    elif missing and not pattern:
        text = f"targets {shorten(', '.join(missing))} name no layer of {model.name}; not counted"
        warnings.append(PlanWarning(code="not-counted", message=text))
    return found


def _group_of_node(launch: LauncherCommand, world: int, nodes: int | None) -> int | None:
    """GPUs of a node, over which a hybrid strategy shards; None where there is one node, or nothing says how many."""
    stated = launch.gpus_per_node if launch.starter or launch.nodes else None
    count = launch.nodes or nodes or 1
    return stated or (world // count if world % count == 0 else None)


def _batches(run: TrainerRun, dp: int, warnings: list[PlanWarning]) -> tuple[int, int]:
    """(micro-batch, sequences of a step): the step is micro-batch · accumulation · replicas, on which all files have to agree.

    Where a file states the step alone, the micro-batch is what is left of it (DeepSpeed's config.py,
    _set_batch_related_parameters).
    """
    if run.global_batch is None:
        if run.micro_batch is None:
            default = int(framework_facts("transformers_flags")["defaults"]["per_device_train_batch_size"])
            text = f"nothing states the batch of a GPU; {default} sequences assumed (the Trainer's default)"
            warnings.append(PlanWarning(code="assumed-batch", message=text))
            run.micro_batch = default
        return run.micro_batch, run.micro_batch * (run.accumulation or 1) * dp
    steps = run.accumulation or 1
    if run.micro_batch is None:
        if run.global_batch % (steps * dp):
            raise InputError(
                f"train_batch_size {run.global_batch} is not a multiple of accumulation {steps} x {dp} replicas; use"
                f" {max(run.global_batch // (steps * dp), 1) * steps * dp}"
            )
        return run.global_batch // (steps * dp), run.global_batch
    right = run.micro_batch * steps * dp
    if run.global_batch % (run.micro_batch * dp):
        raise InputError(
            f"train_batch_size {run.global_batch} is not a multiple of micro-batch {run.micro_batch} x {dp} replicas;"
            f" use {right}"
        )
    if run.accumulation is not None and run.global_batch != right:
        raise InputError(
            f"train_batch_size {run.global_batch} is not micro-batch {run.micro_batch} x accumulation {run.accumulation} x {dp}"
            f" replicas = {right}; use {right}"
        )
    return run.micro_batch, run.global_batch


def _tiles(run: TrainerRun, model: Model, seq: int) -> int:
    """Pieces of the sequence in which feed-forward blocks run; 1 where they run whole."""
    if not run.tiled:
        return 1
    return run.mlp_tiles or max(int(ceil_div(seq // run.cp, run.tile_tokens or model.hidden)), 1)


def _plan(run: TrainerRun, layout: Layout, micro: int, warnings: list[PlanWarning], *, tiles: int) -> TrainingPlan:
    sharding = run.sharding
    group = sharding.group
    if group is not None and (int(layout.dp) * int(layout.cp)) % group:
        raise InputError(f"a shard group of {group} does not divide the {layout.dp * layout.cp} ranks; use a divisor")
    whole = group is None or group == int(layout.dp) * int(layout.cp)
    optimizer = optimizer_of(run, warnings)  # it may update in the backward pass
    return TrainingPlan(
        layout=layout,
        micro_batch=micro,
        implementation=run.framework,
        recipe=recipe_of(run),
        optimizer=optimizer,
        sp=False,
        zero=sharding.zero,
        shard_group=None if whole else group,
        reshard=sharding.reshard,
        dispatcher=run.dispatcher,
        schedule="sequential" if run.spread else "1f1b",
        flat_parameters=sharding.by == "fsdp" and sharding.version == 1 and sharding.zero > 0,
        recompute=Recompute(mode="full") if run.checkpointing or sharding.checkpointing else Recompute(),
        attention=run.attention,
        compiled=run.compiled,
        loss=run.loss,
        offload=Offload(
            activations=1.0 if run.activation_offload else 0.0,
            optimizer=sharding.offload_optimizer,
            weights=sharding.offload_weights,
        ),
        optimizer_in_backward=run.in_backward,
        mlp_tiles=tiles,
        loss_tile=run.loss_tile,
        fused_layers=run.fused_layers,
        companions=tuple(run.companions),
    )
