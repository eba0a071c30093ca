"""How a model is trained: layout, sharding, recipe, recompute, schedule, offload. A plan knows nothing of its cost.

Numbers (degrees of parallelism, micro-batch) may be arrays, one entry per plan; choices never are, so a table of plans shares
one implementation, schedule, recompute mode and recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.plans.companions import Companion
from trilemma.plans.frameworks import every
from trilemma.plans.plan import Layout
from trilemma.quantities import Numbers, ceil_div
from trilemma.versions import DEFAULT_FRAMEWORK
from trilemma.workloads import TrainingWorkload

#: Who runs the training: decides which tensors are saved, how state is sharded and what stays unsharded.
#: A framework of data/frameworks.
Implementation = str
#: Order of micro-batches over pipeline stages: Huang et al. 2019; Narayanan et al. 2019 and 2021; Qi et al. 2024; DeepSeek-V3.
#: ``sequential`` runs one micro-batch through all stages before the next (layers spread over cards by a device map).
Schedule = Literal[
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipe", "dualpipev", "sequential"
]
#: ``full`` logits in one piece, ``chunked`` along the sequence, ``fused`` with the output matrix (logits never whole),
#: ``compiled``: whole, by a compiled kernel that keeps more of them (Megatron-LM's native fusion); ``none``: the head has a few
#: rows (rewards, classes) or none (embeddings).
Loss = Literal["full", "chunked", "fused", "compiled", "none"]
Attention = Literal["flash", "sdpa", "eager"]
#: How context-parallel ranks see one another's keys and values: passed around a ring, or heads traded (Ulysses).
CpExchange = Literal["ring", "all_to_all"]
#: How tokens reach the ranks of their experts: NCCL's all-to-all, of buffers padded to a capacity, or kernels that send a token
#: once into each domain.
Dispatcher = Literal["alltoall", "padded", "deepep", "hybridep"]
#: Format of matrix products beside the compute format: tensorwise and rowwise or blockwise FP8, MXFP8, NVFP4.
Matmul = Literal["same", "fp8_tensor", "fp8_row", "fp8_block", "mxfp8", "nvfp4"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """Which moments an optimizer keeps, by format name.

    ``moments``: one format per moment of a matrix of the decoder; ``other_moments``: of all other tensors (Muon treats
    embeddings, norms and biases as AdamW does); None means the same. ``factored`` second moments are a row and a column
    (Adafactor). ``step_copies`` is how many FP32 copies of the parameters being updated live for a moment in the step
    (a foreach implementation over all tensors at once); "weights" stands for the format of the weights.
    ``newton_schulz_steps``: how often each matrix's update is multiplied towards an orthogonal one (Muon). ``paged``: moments
    lie in memory that the driver moves to the host where the card has no room (bitsandbytes). ``projected``: moments of the
    decoder's matrices are of gradients projected to this rank along their shorter side, whose projector is held (GaLore, Zhao et
    al. 2024; APOLLO, Zhu et al. 2024); 0 projects nothing.
    """

    name: str
    moments: tuple[str, ...]
    other_moments: tuple[str, ...] | None = None
    factored: bool = False
    step_copies: float = 0.0
    newton_schulz_steps: int = 0
    paged: bool = False
    projected: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.projected <= 2**16:
            raise InputError(f"gradients projected to rank {self.projected} is out of range; give a rank such as 128")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRecipe:
    """Number formats of training state, by format name.

    ``weights`` is what parameters are held in, ``gathered`` what they are computed in (FSDP casts when it gathers),
    ``gradients`` what is accumulated, ``master`` a separate copy that the optimizer updates (None: it updates ``weights``).
    ``activations`` is the format of saved activations. ``matmul`` names low-precision matrix products;
    ``autocast`` False: products take the format of their weights, and what enters them is cast by hand.
    ``weight_copies`` the formats of copies of every linear weight kept beside the weights (FP8 and its transpose in
    Transformer Engine), which training in FP8 adds rather than saves.
    """

    name: str
    weights: str = "bf16"
    gathered: str = "bf16"
    gradients: str = "fp32"
    master: str | None = "fp32"
    activations: str = "bf16"
    matmul: Matmul = "same"
    weight_copies: tuple[str, ...] = ()
    autocast: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        if self.matmul not in get_args(Matmul):
            raise InputError(
                f"matrix products in {shorten(str(self.matmul))!r} are not known; use {', '.join(get_args(Matmul))}"
            )


#: What is computed twice: nothing, named parts of each layer, every second matrix product (torchtitan's op-level
#: selective checkpointing), whole layers.
RecomputeMode = Literal["none", "selective", "op", "full"]
#: Parts that selective recompute may name, in Megatron's words.
RECOMPUTE_PARTS = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute:
    """What backward computes again instead of keeping.

    ``parts`` are the names of selective recompute (`RECOMPUTE_PARTS`). ``layers`` limits full recompute to that many layers
    of each stage (Megatron's block method, torchtitan's every n-th layer); None means all.
    """

    mode: RecomputeMode = "none"
    parts: tuple[str, ...] = ()
    layers: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(RecomputeMode):
            raise InputError(f"`recompute` {shorten(str(self.mode))!r} is not known; use none, selective, op or full")
        if self.mode == "selective" and not self.parts:
            object.__setattr__(self, "parts", ("core_attn",))
        for part in self.parts:
            if part not in RECOMPUTE_PARTS:
                raise InputError(f"recompute part {shorten(part)!r} is not known; use {', '.join(RECOMPUTE_PARTS)}")
        if self.layers is not None and not 0 <= self.layers <= 2**16:
            raise InputError(f"recompute of {self.layers} layers is out of range; give a whole number of at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Offload:
    """Shares, from 0 to 1, of saved activations, optimizer state and weights kept in host memory.

    ``masters``: the share of FP32 weights that leaves with the state where the framework keeps them on the card otherwise
    (Megatron-LM's precision-aware optimizer makes none itself: HybridDeviceOptimizer holds them beside the moments).
    ``moments``: the share of moments that waits on the host while the card updates (paged optimizers).
    """

    activations: float = 0.0
    optimizer: float = 0.0
    weights: float = 0.0
    masters: float = 0.0
    moments: float = 0.0

    def __post_init__(self) -> None:
        for name in ("activations", "optimizer", "weights", "masters", "moments"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"`offload` {name} {getattr(self, name)} is out of range; give a share from 0 to 1")

    @property
    def any(self) -> bool:
        return bool(self.activations or self.optimizer or self.weights or self.moments)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """One training plan, or a table of plans that differ in numbers alone.

    ``layout``: ``gpus = tp · pp · dp · cp``; ``ep`` spreads experts over ranks of ``dp · cp · tp``, each expert cut by
    ``expert_tp`` (None: by 1 where ``ep`` > 1, else by ``tp``). ``sp`` is Megatron's sequence parallelism. ``zero`` 1 shards
    optimizer state, 2 gradients too, 3 weights too (FSDP, FSDP2) over ``dp · cp`` ranks, or over ``shard_group`` of them
    with copies between groups (HSDP). ``reshard`` frees gathered blocks after the forward pass (ZeRO-3); it is left out
    where a pipeline keeps them. ``flat_parameters``: layers are gathered and reduced as one flat tensor each (FSDP1), not by
    parameter (FSDP2). ``pipeline_layers`` states the layers of each stage where they are uneven by hand.
    ``imbalance`` is the load of the fullest expert rank over the mean. ``loss_tile`` are the tokens of a piece of a
    fused loss (None: as many logits as hidden values), ``loss_chunks`` the pieces
    of a chunked loss, ``mlp_tiles`` the pieces of the sequence in which dense feed-forward blocks are computed, again in backward
    (Arctic long sequence training, 2025); ``fused_layers``: norms and gated activations are kernels that keep their inputs
    alone (Liger, Hsu et al. 2024); ``optimizer_in_backward`` updates and frees each gradient as it comes.
    ``overlap_tensor`` and ``overlap_data`` say whether collectives of those groups run beside computation (None: as the
    framework does by default).
    ``dispatcher`` is how experts get their tokens (None: as the framework does by default, all-to-all mostly), ``overlap_expert``
    whether they travel beside another micro-batch's computation; ``cuda_graphs`` replay kernels, of a mixture those beside its
    experts, under ``step_graph`` all of a step. ``fused_experts``: grouped products, activation and casts are one kernel;
    ``attention_fp8``: the products of attention are in FP8.
    ``mtp`` trains multi-token-prediction layers too. ``hidden_dropout`` and ``attention_dropout`` say that there is any.
    ``companions`` are models and engines that share the cards (`Companion`).
    ``version`` is that of the implementation, where known (facts by date live in data).
    """

    layout: Layout = field(default_factory=Layout)
    micro_batch: Numbers = 1
    implementation: Implementation = DEFAULT_FRAMEWORK
    version: str | None = None
    recipe: TrainingRecipe = field(default_factory=lambda: TrainingRecipe(name="bf16"))
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(name="adamw", moments=("fp32", "fp32")))
    sp: bool = True
    expert_tp: Numbers | None = None
    zero: int = 1
    shard_group: Numbers | None = None
    reshard: bool = True
    flat_parameters: bool = False
    recompute: Recompute = field(default_factory=Recompute)
    schedule: Schedule = "1f1b"
    pipeline_layers: tuple[int, ...] | None = None
    attention: Attention = "flash"
    compiled: bool = False
    loss: Loss = "full"
    loss_chunks: int = 8
    loss_tile: int | None = None
    mlp_tiles: int = 1
    fused_layers: bool = False
    offload: Offload = field(default_factory=Offload)
    optimizer_in_backward: bool = False
    imbalance: float = 1.0
    cp_exchange: CpExchange = "ring"
    overlap_tensor: bool | None = None
    overlap_data: bool | None = None
    mtp: bool = False
    dispatcher: Dispatcher | None = None
    cuda_graphs: bool = False
    step_graph: bool = False
    overlap_expert: bool = False
    fused_experts: bool = False
    attention_fp8: bool = False
    hidden_dropout: bool = False
    attention_dropout: bool = False
    companions: tuple[Companion, ...] = ()

    def __post_init__(self) -> None:
        for name, value, known in (
            ("cp_exchange", self.cp_exchange, get_args(CpExchange)),
            ("implementation", self.implementation, tuple(every())),
            ("schedule", self.schedule, get_args(Schedule)),
            ("loss", self.loss, get_args(Loss)),
            ("attention", self.attention, get_args(Attention)),
            ("dispatcher", self.dispatcher, (None, *get_args(Dispatcher))),
        ):
            if value not in known:
                words = ", ".join(str(one) for one in known if one is not None)
                raise InputError(f"{name} {shorten(str(value))!r} is not known; use {words}")
        if self.zero not in (0, 1, 2, 3):
            raise InputError(f"`zero` {shorten(str(self.zero))} is not known; use 0, 1, 2 or 3")
        _check_whole("micro_batch", self.micro_batch)
        for name in ("shard_group", "expert_tp"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name))
        if not 1 <= self.imbalance <= 2**16:
            raise InputError(f"expert imbalance {self.imbalance} is out of range; give the fullest rank over the mean")
        if not 1 <= self.mlp_tiles <= 2**20:
            raise InputError(f"{self.mlp_tiles} tiles of the MLP is out of range; give a whole number of at least 1")
        if self.loss_tile is not None and not 1 <= self.loss_tile <= 2**40:
            raise InputError(f"a tile of {self.loss_tile} tokens is out of range; give a whole number of at least 1")
        if not 1 <= self.loss_chunks <= 2**20:
            raise InputError(f"{self.loss_chunks} loss chunks is out of range; give a whole number of at least 1")

    def micro_batches(self, workload: TrainingWorkload) -> Any:
        """Micro-batches of one pipeline in an optimizer step: ``global_batch / (micro_batch · dp)``, rounded up."""
        return ceil_div(workload.global_batch, np.asarray(self.micro_batch) * self.layout.dp)


def _check_whole(name: str, value: Numbers) -> None:
    given = np.asarray(value)
    if given.size and (not np.issubdtype(given.dtype, np.integer) or given.min() < 1 or given.max() > 2**20):
        raise InputError(f"`{name}` {shorten(str(value))} is out of range; give a whole number of at least 1")
