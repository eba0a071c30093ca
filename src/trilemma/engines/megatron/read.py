"""A ``pretrain_gpt.py`` command to a training plan: layout, recipe, recompute, sharding, offload, batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trilemma.commands.launchers import LauncherCommand, split_launch
from trilemma.commands.option_words import Options, read_options
from trilemma.engines.megatron.architecture import model_from_flags
from trilemma.engines.megatron.precision import optimizer_of, recipe_of
from trilemma.engines.megatron.stages import chunks, stage_layers
from trilemma.engines.training import TrainingCommand, framework_facts, replicas, steps_per_batch, unknown_warning
from trilemma.errors import GpusUnsaid, InputError, PlanWarning, shorten
from trilemma.memory.traits import implementation_facts
from trilemma.models.architecture import ExpertFfn, Ffn, Model
from trilemma.plans.plan import Layout
from trilemma.plans.training import (
    RECOMPUTE_PARTS,
    Attention,
    Dispatcher,
    Loss,
    Offload,
    Recompute,
    Schedule,
    TrainingPlan,
)
from trilemma.workloads import TrainingWorkload

_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
#: Flags that change memory or speed in ways that no rule here counts.
_UNCOUNTED = ("fine-grained-activation-offloading", "delay-wgrad-compute", "moe-expert-capacity-factor")


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan that Megatron's flags ask for. ``gpus`` stands where the launcher says no number. Raises `InputError`."""
    launch = split_launch(words)
    facts = framework_facts("megatron_flags")
    switches, values, lists = (frozenset(facts[kind]) for kind in ("switches", "values", "lists"))
    options = read_options(launch.words, switches=switches, values=values, lists=lists)
    warnings = list(
        unknown_warning(options.unknown, (f"--{n}" for n in (*switches, *values, *lists)), where="Megatron-LM")
    )
    for size in facts["counts"]:
        options.whole(size)
    described, assumed = model_from_flags(options)
    name, model = _model(options, described)
    warnings += [*(assumed if model is described else ()), *_uncounted(options)]
    world = _world(launch, gpus)
    layout = _layout(options, world, model)
    micro = options.whole("micro-batch-size") or 1
    dp = int(layout.dp)
    batch = options.whole("global-batch-size") or micro * dp
    steps_per_batch(global_batch=batch, micro_batch=micro, dp=dp, flag="--global-batch-size")
    return TrainingCommand(
        framework="megatron",
        model=name,
        architecture=model,
        plan=_plan(options, layout, micro, model, warnings),
        workload=TrainingWorkload(
            seq=options.whole("seq-length") or _required("seq-length"),
            global_batch=batch,
            tokens=_tokens(options, batch),
        ),
        gpus=world,
        gpus_per_node=launch.gpus_per_node,
        unknown_flags=options.unknown,
        warnings=tuple(warnings),
    )


def _required(name: str) -> int:
    raise InputError(f"the command has no --{name}; give it, such as --{name} 4096")


def _world(launch: LauncherCommand, gpus: int | None) -> int:
    world = launch.gpus or gpus
    if world is None:
        raise GpusUnsaid
    return world


def _model(options: Options, described: Model | None) -> tuple[str, Model | None]:
    """The catalogue's model that the tokenizer or checkpoint names, where it has the sizes of the flags; else these."""
    from trilemma.models.resolve import load_model

    for flag in ("tokenizer-model", "pretrained-checkpoint", "load"):
        name = options.text(flag)
        if not name or name.startswith("$"):
            continue
        try:
            found = load_model(name.rstrip("/").rpartition("/")[2] if name.startswith(("/", ".")) else name)
        except InputError:
            continue
        if described is None or _same_sizes(found, described):
            return found.name, found if described is None else _routed_as(found, described)
    if described is None:
        raise InputError("the command describes no model; give --num-layers, --hidden-size and --num-attention-heads")
    return described.name, described


def _same_sizes(one: Model, other: Model) -> bool:
    return (one.hidden, one.vocab, len(one.layers)) == (other.hidden, other.vocab, len(other.layers)) and [
        _ungrouped(layer.ffn) for layer in one.layers
    ] == [_ungrouped(layer.ffn) for layer in other.layers]


def _ungrouped(ffn: Ffn | None) -> Ffn | None:
    return replace(ffn, groups=1, top_groups=1) if isinstance(ffn, ExpertFfn) else ffn


def _routed_as(model: Model, described: Model) -> Model:
    """``model`` with the router groups of the flags: a run need not route as the published model does."""
    layers = tuple(replace(layer, ffn=other.ffn) for layer, other in zip(model.layers, described.layers, strict=True))
    return model if layers == model.layers else replace(model, layers=layers)


def _layout(options: Options, world: int, model: Model | None) -> Layout:
    tp = options.whole("tensor-model-parallel-size") or 1
    pp = options.whole("pipeline-model-parallel-size") or 1
    cp = options.whole("context-parallel-size") or 1
    given = {
        "--tensor-model-parallel-size": tp, "--pipeline-model-parallel-size": pp, "--context-parallel-size": cp,
    }  # fmt: skip
    return Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=replicas(world, given=given),
        ep=options.whole("expert-model-parallel-size") or 1,
        vpp=chunks(options, pp, model),
    )


def _loss(options: Options) -> Loss:
    """How logits become a loss: fused with the output matrix, by the compiled kernel (the native one of
    ``--cross-entropy-loss-fusion``), or in steps (Transformer Engine's kernel works in place)."""
    kind = options.text("cross-entropy-fusion-impl") or "native"
    if kind == "linear":
        return "fused"
    return "compiled" if options.on("cross-entropy-loss-fusion") and kind == "native" else "full"


def _plan(
    options: Options, layout: Layout, micro: int, model: Model | None, warnings: list[PlanWarning]
) -> TrainingPlan:
    tp, pp, vpp, ep = int(layout.tp), int(layout.pp), int(layout.vpp), int(layout.ep)
    schedule: Schedule = "interleaved" if vpp > 1 else "1f1b"
    expert_tp = options.whole("expert-tensor-parallel-size")
    # megatron/training/arguments.py: layers of Megatron-Core itself hold scores unless FlashAttention is asked for.
    unfused = options.text("attention-backend") in ("unfused", "local")
    unfused |= options.text("transformer-impl") == "local" and not options.on("use-flash-attn")
    attention: Attention = "eager" if unfused else "flash"
    return TrainingPlan(
        layout=layout,
        micro_batch=micro,
        implementation="megatron",
        recipe=recipe_of(options, warnings),
        optimizer=optimizer_of(options, warnings),
        sp=options.on("sequence-parallel") and tp > 1,
        expert_tp=expert_tp if expert_tp is not None else (tp if ep > 1 else None),
        zero=_zero(options),
        shard_group=_shard_group(options, int(layout.dp) * int(layout.cp)),
        recompute=_recompute(options, warnings),
        schedule=schedule,
        pipeline_layers=stage_layers(options, pp, vpp, model),
        attention=attention,
        loss=_loss(options),
        offload=_offload(options, model),
        cp_exchange="all_to_all" if "a2a" in (options.text("cp-comm-type") or "") else "ring",
        overlap_tensor=options.on("tp-comm-overlap"),
        overlap_data=options.on("overlap-grad-reduce"),
        mtp=bool(options.whole("mtp-num-layers", low=0)),
        dispatcher=_dispatcher(options),
        cuda_graphs=options.on("enable-cuda-graph", "external-cuda-graph")
        or (options.text("cuda-graph-impl") or "none") != "none",
        step_graph="full_iteration" in (options.text("cuda-graph-impl"), options.text("cuda-graph-scope")),
        overlap_expert=options.on("overlap-moe-expert-parallel-comm"),
        fused_experts=options.on("use-transformer-engine-op-fuser"),
        hidden_dropout=_dropped(options, "hidden-dropout"),
        attention_dropout=_dropped(options, "attention-dropout"),
    )


def _dispatcher(options: Options) -> Dispatcher | None:
    """DeepEP or HybridEP where the flexible dispatcher is asked for, or padded buffers; all-to-all, which scripts state by habit,
    says nothing."""
    if options.on("moe-pad-expert-input-to-capacity"):
        return "padded"
    if options.text("moe-token-dispatcher-type") != "flex" and not options.on("moe-enable-deepep"):
        return None
    return "hybridep" if options.text("moe-flex-dispatcher-backend") == "hybridep" else "deepep"


def _dropped(options: Options, name: str) -> bool:
    """Whether there is dropout: Megatron-LM's arguments.py has 0.1 of both unless told otherwise."""
    share = options.real(name)
    return (0.1 if share is None else share) > 0


def _zero(options: Options) -> int:
    if options.on("use-megatron-fsdp", "use-custom-fsdp"):
        name = options.text("data-parallel-sharding-strategy") or "no_shard"
        if name not in _SHARDING:
            raise InputError(
                f"--data-parallel-sharding-strategy {shorten(name)!r} is not known; use {', '.join(_SHARDING)}"
            )
        return _SHARDING[name]
    if options.on("use-torch-fsdp2"):
        return 3
    return 1 if options.on("use-distributed-optimizer") else 0


def _shard_group(options: Options, ranks: int) -> int | None:
    copies = options.whole("num-distributed-optimizer-instances") or 1
    if copies == 1:
        return None
    if ranks % copies:
        raise InputError(
            f"--num-distributed-optimizer-instances {copies} does not divide the {ranks} ranks; use a divisor"
        )
    return ranks // copies


def _recompute(options: Options, warnings: list[PlanWarning]) -> Recompute:
    kind = options.text("recompute-granularity") or ("selective" if options.on("recompute-activations") else None)
    if kind is None:
        return Recompute()
    if kind == "selective":
        parts = options.words.get("recompute-modules") or ("core_attn",)
        left = [part for part in parts if part not in RECOMPUTE_PARTS]
        if left:
            message = f"--recompute-modules {shorten(' '.join(left))} is not counted"
            warnings.append(PlanWarning(code="not-counted", message=message))
        return Recompute(mode="selective", parts=tuple(part for part in parts if part in RECOMPUTE_PARTS))
    if kind != "full":
        raise InputError(f"--recompute-granularity {shorten(kind)!r} is not known; use full or selective")
    layers = options.whole("recompute-num-layers")
    chunks = options.whole("num-virtual-stages-per-pipeline-rank") or 1
    # uniform recomputes every layer, in units of that many; block only so many of each chunk of a stage.
    block = options.text("recompute-method") == "block"
    return Recompute(mode="full", layers=layers * chunks if block and layers is not None else None)


def _offload(options: Options, model: Model | None) -> Offload:
    optimizer_share = 0.0
    if options.on("optimizer-cpu-offload"):
        share = options.real("optimizer-offload-fraction")
        optimizer_share = 1.0 if share is None else share
    layers = options.whole("cpu-offloading-num-layers", low=0) or 0
    total = len(model.layers) if model is not None else 1
    if layers > total:
        raise InputError(f"--cpu-offloading-num-layers {layers} is more than the {total} layers; use fewer")
    share = layers / total
    weights = options.on("cpu-offloading-weights")
    # The distributed optimizer makes no FP32 weights of its own then: HybridDeviceOptimizer holds them with the moments
    # (megatron/core/optimizer/distrib_optimizer.py and cpu_offloading/hybrid_optimizer.py at d98e8a64).
    masters = optimizer_share if options.on("use-precision-aware-optimizer") else 0.0
    return Offload(activations=share, optimizer=optimizer_share, weights=share if weights else 0.0, masters=masters)


def _uncounted(options: Options) -> list[PlanWarning]:
    names = [f"--{name}" for name in _UNCOUNTED if options.has(name)]
    if options.whole("make-vocab-size-divisible-by") not in (
        None,
        implementation_facts("megatron", version=None)["vocab_multiple"],
    ):
        names.append("--make-vocab-size-divisible-by")
    if not names:
        return []
    return [PlanWarning(code="not-counted", message=f"{', '.join(names)}: what this changes is not counted yet")]


def _tokens(options: Options, batch: int) -> float | None:
    """Length of the run in tokens: samples, or iterations of the global batch, times the sequence."""
    samples = options.whole("train-samples")
    steps = options.whole("train-iters")
    sequences = samples if samples is not None else (steps * batch if steps is not None else None)
    return None if sequences is None else float(sequences) * (options.whole("seq-length") or 1)
