"""Options of training that mean the same in ``plan --train``, ``fit --train`` and ``check``, and how they become the nouns."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trilemma.cli.arguments import free_gib, number, whole_number, word
from trilemma.errors import InputError, UnknownName, shorten

if TYPE_CHECKING:
    from trilemma.hardware.cluster import Cluster
    from trilemma.plans.training import Implementation, Offload, Recompute, Schedule
    from trilemma.search.training_space import Settled
    from trilemma.workloads import TrainingWorkload

_DEGREES = (
    ("tp", "tensor parallel"),
    ("pp", "pipeline parallel"),
    ("vpp", "model chunks of each pipeline stage"),
    ("dp", "data parallel replicas"),
    ("ep", "expert parallel: ranks over which whole experts are spread"),
    ("cp", "context parallel: ranks over which a sequence is cut"),
)
#: What ``--offload`` takes: where each part of the state goes.
_OFFLOADS = ("none", "optimizer", "activations", "weights")
#: ``--engine`` → implementation; frameworks whose commands are read.
_IMPLEMENTATIONS: dict[str, Implementation] = {
    "megatron": "megatron", "megatron-lm": "megatron", "megatron-core": "megatron", "torchtitan": "torchtitan",
    "fsdp": "torchtitan", "fsdp2": "torchtitan", "deepspeed": "deepspeed", "accelerate": "accelerate",
    "transformers": "transformers", "axolotl": "axolotl",
}  # fmt: skip


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("training")
    load.add_argument("--train", "--seq", type=whole_number, metavar="SEQ", dest="train", help="tokens of a sequence")
    load.add_argument("--global-batch", type=whole_number, metavar="B", help="sequences of an optimizer step")
    load.add_argument("--tokens", metavar="N", help="length of the run, such as 15T: days and dollars of it")
    load.add_argument("--method", choices=("full", "lora", "qlora", "dora"), default="full", help="what is trained")
    load.add_argument("--rank", type=whole_number, metavar="R", help="rank of the adapters (default 16)")
    load.add_argument("--targets", metavar="NAME[,…]", help="layers with adapters (default: every linear layer)")


def add_plan_arguments(parser: argparse.ArgumentParser, *, settled: bool) -> None:
    """Layout and recipe; ``settled`` words them for a search, which varies what is not given."""
    group = parser.add_argument_group("settled by you (default: all are searched)" if settled else "layout")
    for name, text in _DEGREES:
        group.add_argument(f"--{name}", type=whole_number, metavar="N", help=text)
    group.add_argument("--micro-batch", type=whole_number, metavar="N", help="sequences of one pass of one replica")
    group.add_argument("--sp", action=argparse.BooleanOptionalAction, default=None, help="sequence parallel beside tp")
    group.add_argument(
        "--zero", type=int, choices=(0, 1, 2, 3), help="sharded: 1 optimizer, 2 gradients, 3 weights (FSDP)"
    )
    group.add_argument(
        "--recompute",
        metavar="none|selective|full",
        help="what backward computes again; parts as selective:core_attn,mlp, layers as full:4",
    )
    group.add_argument("--optimizer", metavar="NAME", help="adamw, adamw-8bit, adafactor, muon, sgd, …")
    group.add_argument("--schedule", metavar="NAME", help="1f1b, interleaved, gpipe, zb-h1, zbv, dualpipe, …")
    group.add_argument(
        "--offload", metavar="PART[=SHARE][,…]", help="optimizer, activations or weights kept on the host"
    )
    group.add_argument(
        "--host-memory", type=free_gib, metavar="GIB", help="memory of a node's host, which holds what is offloaded"
    )
    group.add_argument(
        "--precision", type=word, metavar="RECIPE[,…]", help="bf16, fp8, mxfp8, nvfp4, fsdp, amp, pure-bf16, …"
    )
    group.add_argument(
        "--engine",
        metavar="NAME[@VERSION]",
        help="megatron (default of full training), transformers (of adapters), torchtitan, deepspeed, …",
    )


def with_host_memory(cluster: Cluster, arguments: argparse.Namespace) -> Cluster:
    """``cluster`` with the memory of a node's host where ``--host-memory`` states it."""
    from dataclasses import replace

    from trilemma.quantities import GIB

    stated = arguments.host_memory
    return cluster if stated is None else replace(cluster, host_memory_bytes=stated * GIB)


def read_training_workload(arguments: argparse.Namespace) -> TrainingWorkload:
    from trilemma.quantities import parse_count
    from trilemma.workloads import TrainingWorkload

    if arguments.train is None:
        raise InputError("training needs --train SEQ, such as --train 8192")
    if arguments.global_batch is None:
        raise InputError("training needs --global-batch B, such as --global-batch 512 (sequences of an optimizer step)")
    tokens = None
    if arguments.tokens is not None:
        text = arguments.tokens.strip()
        unit = {"t": 1e12, "b": 1e9}.get(text[-1:].lower())
        try:
            tokens = number(text[:-1]) * unit if unit else float(parse_count(text, what="--tokens", decimal=True))
        except argparse.ArgumentTypeError as error:
            raise InputError(f"--tokens {shorten(text)!r}: {error}; give a length such as 15T or 300B") from None
    rank = arguments.rank if arguments.rank is not None else 16
    targets = tuple(part.strip() for part in (arguments.targets or "").split(",") if part.strip())
    return TrainingWorkload(
        seq=arguments.train,
        global_batch=arguments.global_batch,
        method=arguments.method,
        rank=rank if arguments.method != "full" else 0,
        targets=targets,
        tokens=tokens,
    )


def read_settled(arguments: argparse.Namespace) -> Settled:
    """What the options settle, checked; names that are not known raise `UnknownName`."""
    from typing import get_args

    from trilemma.plans.recipes import optimizer, recipe
    from trilemma.plans.training import Schedule as Schedules
    from trilemma.search.training_space import Settled

    engine = arguments.engine or ("megatron" if arguments.method == "full" else "transformers")
    implementation, version = read_implementation(engine)
    schedule: Schedule | None = arguments.schedule
    if schedule is not None and schedule not in get_args(Schedules):
        raise UnknownName("schedule", schedule, get_args(Schedules), hint=f"known: {', '.join(get_args(Schedules))}")
    recipes = tuple(name.strip() for name in (arguments.precision or "").split(",") if name.strip())
    for name in recipes:
        recipe(name)
    if arguments.optimizer is not None:
        optimizer(arguments.optimizer)
    return Settled(
        **{name: getattr(arguments, name) for name, _ in _DEGREES},
        micro_batch=arguments.micro_batch,
        zero=arguments.zero,
        sp=arguments.sp,
        recompute=read_recompute(arguments.recompute),
        schedule=schedule,
        recipes=recipes,
        optimizer=arguments.optimizer,
        offload=read_offload(arguments.offload),
        implementation=implementation,
        version=version,
    )


def read_implementation(text: str) -> tuple[Implementation, str | None]:
    """``torchtitan@0.3`` → its implementation and version. Raises `UnknownName`."""
    name, _, version = text.partition("@")
    found = _IMPLEMENTATIONS.get(name.strip().lower())
    if found is None:
        raise UnknownName("training engine", name, _IMPLEMENTATIONS, hint=f"known: {', '.join(_IMPLEMENTATIONS)}")
    return found, version or None


def read_recompute(text: str | None) -> Recompute | None:
    """``none``, ``full``, ``full:4`` (layers a stage), ``selective``, ``selective:core_attn,mlp``, ``op``."""
    from trilemma.plans.training import Recompute

    if text is None:
        return None
    mode, _, rest = text.partition(":")
    if mode == "full" and rest:
        if not rest.isdigit():
            raise InputError(f"--recompute {shorten(text)!r}: full takes a number of layers, such as full:4")
        return Recompute(mode="full", layers=int(rest))
    parts = tuple(part for part in rest.split(",") if part)
    return Recompute(mode=mode, parts=parts)  # type: ignore[arg-type]  # checked at construction


def read_offload(text: str | None) -> Offload | None:
    """``optimizer``, ``optimizer=0.5,activations``, ``none``."""
    from trilemma.plans.training import Offload

    if text is None:
        return None
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, sign, share = part.strip().partition("=")
        if name not in _OFFLOADS:
            raise InputError(f"--offload {shorten(name)!r} is not known; use {', '.join(_OFFLOADS)}")
        if name == "none":
            continue
        try:
            shares[name] = number(share) if sign else 1.0
        except argparse.ArgumentTypeError as error:
            raise InputError(f"--offload {name}: {error}") from None
    return Offload(**shares)
