"""Every option of training, declared once, as those of serving in `trilemma.ask.options`."""

from __future__ import annotations

from trilemma.ask.options import FIT, GPUS, PLAN, POWER_CAP, RECOMMEND, Option
from trilemma.ask.reading import as_given, free_gib, hours, number, text, truth, whole_number, whole_or_none, word

#: The question of one training plan, that of the best ones, and that of cards for the job.
_ALL = (FIT, PLAN, RECOMMEND)


def _settled(name: str, help_: str, **more: object) -> Option:
    return Option(name=name, help=help_, of=_ALL, group="layout", **more)  # type: ignore[arg-type]


TRAINING: tuple[Option, ...] = (
    Option(name="models", of=_ALL, read=text, metavar="DIR", help="look hub ids up as DIR/<org>--<name>/config.json first"),
    *GPUS,
    POWER_CAP,
    Option(name="seq", of=_ALL, read=whole_number, metavar="SEQ", group="training", aliases=("train",),
           help="tokens of a sequence"),
    Option(name="global_batch", of=_ALL, read=whole_number, metavar="B", group="training",
           help="sequences of an optimizer step"),
    Option(name="tokens", of=_ALL, read=as_given, metavar="N", group="training",
           help="length of the run, such as 15T: days and dollars of it"),
    Option(name="mtbf", of=_ALL, read=hours, metavar="GPU_TIME", group="training",
           help="time of a GPU between interruptions of a run, such as 2000h or 83d (hours without a unit; default 50,000, as"
                " counted on 16,384 H100; 0: none)"),
    Option(name="restart", of=_ALL, read=number, metavar="S", group="training",
           help="seconds from an interruption until training goes on (default 600)"),
    Option(name="spares", of=_ALL, read=whole_or_none, metavar="N", group="training",
           help="GPUs that stand by (default: as many as are needed)"),
    Option(name="storage", of=_ALL, read=text, metavar="RATE", group="training",
           help="what all GPUs together have of the storage of checkpoints, such as 100GB/s"),
    Option(name="sync_checkpoints", of=_ALL, read=truth, group="training", default=False,
           help="training stands still while a checkpoint is written (default: it is copied and written beside)"),
    Option(name="method", of=_ALL, read=text, group="training", default="full",
           choices=("full", "lora", "qlora", "dora"), help="what is trained"),
    Option(name="rank", of=_ALL, read=whole_number, metavar="R", group="training",
           help="rank of the adapters (default 16)"),
    Option(name="targets", of=_ALL, read=as_given, metavar="NAME[,…]", group="training",
           help="layers with adapters (default: every linear layer)"),
    _settled("tp", "tensor parallel", read=whole_number, metavar="N", noun="degree"),
    _settled("pp", "pipeline parallel", read=whole_number, metavar="N", noun="degree"),
    _settled("vpp", "model chunks of each pipeline stage", read=whole_number, metavar="N", noun="degree"),
    _settled("dp", "data parallel replicas", read=whole_number, metavar="N", noun="degree"),
    _settled("ep", "expert parallel: ranks over which whole experts are spread", read=whole_number, metavar="N",
             noun="degree"),
    _settled("cp", "context parallel: ranks over which a sequence is cut", read=whole_number, metavar="N",
             noun="degree"),
    _settled("micro_batch", "sequences of one pass of one replica", read=whole_number, metavar="N"),
    _settled("sp", "sequence parallel beside tp", maybe=True),
    _settled("zero", "sharded: 1 optimizer, 2 gradients, 3 weights (FSDP)", read=as_given, choices=(0, 1, 2, 3)),
    _settled("recompute", "what backward computes again; parts as selective:core_attn,mlp, layers as full:4",
             metavar="none|selective|full"),
    _settled("optimizer", "adamw, adamw-8bit, adafactor, muon, sgd, …", read=text, metavar="NAME"),
    _settled("schedule", "1f1b, interleaved, gpipe, zb-h1, zbv, dualpipe, …", read=text, metavar="NAME"),
    _settled("offload", "optimizer, activations or weights kept on the host", metavar="PART[=SHARE][,…]"),
    _settled("dispatcher", "how tokens reach their experts (default: as the framework does, all-to-all mostly)", read=as_given,
             choices=("alltoall", "padded", "deepep", "hybridep")),
    _settled("overlap_expert", "tokens travel to experts beside another micro-batch's computation", maybe=True),
    _settled("cuda_graphs", "graphs replay the kernels of a layer", maybe=True),
    _settled("step_graph", "one graph replays a whole step, experts and their exchange too", maybe=True),
    _settled("fused_experts", "grouped products, activation and casts of experts in one kernel", maybe=True),
    _settled("shard_group", "ranks that share one sharded copy, with copies between them (HSDP)", read=whole_number, metavar="N"),
    _settled("loss", "logits whole (compiled: Megatron-LM's native fusion), by pieces of the sequence, or never (Liger, CCE)",
             read=as_given, choices=("full", "chunked", "fused", "compiled")),
    _settled("loss_tile", "tokens of a piece of a loss, fused then (else as many logits as hidden values, as Liger does)",
             read=whole_number, metavar="TOKENS"),
    _settled("mlp_tiles", "pieces of the sequence in which feed-forward blocks run, again in backward", read=whole_number,
             metavar="N"),
    _settled("host_memory", "memory of a node's host, which holds what is offloaded", read=free_gib, metavar="GIB"),
    _settled("precision", "bf16, fp8, mxfp8, nvfp4, fsdp, amp, pure-bf16, …", read=word, metavar="RECIPE[,…]"),
    _settled("engine", "megatron (default of full training), transformers (of adapters), torchtitan, deepspeed, …",
             read=text, metavar="NAME[@VERSION]"),
    Option(name="scale", of=(PLAN,), read=truth, group="training", default=False,
           help="the best plan at every power of two of GPUs too: tokens a second, efficiency, network, days and dollars"),
    Option(name="top", of=(PLAN, RECOMMEND), read=whole_number, metavar="N", default=5,
           help="plans or cards to show (default 5)"),
)  # fmt: skip
