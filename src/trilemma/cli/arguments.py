"""Options that mean the same in every command, and how they become the nouns."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from trilemma.errors import InputError, shorten
from trilemma.quantities import counted, parse_count
from trilemma.versions import DEFAULT_ENGINE

if TYPE_CHECKING:
    from trilemma.hardware.accelerator import Accelerator
    from trilemma.hardware.cluster import Cluster
    from trilemma.hardware.hosts import Host
    from trilemma.plans import Draft, Plan
    from trilemma.search.space import Precision
    from trilemma.workloads import Serving


#: Engines bound the tokens of a draft likewise.
MOST_DRAFTED = 4096
#: No quantity that a command asks for is larger.
_LARGEST = 1e18


def whole_number(text: str) -> int:
    """argparse type: ``4096`` or ``128K``, at least 1."""
    value = whole_or_none(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is out of range; give a whole number of at least 1")
    return value


def whole_or_none(text: str) -> int:
    """argparse type: a whole number from 0."""
    try:
        return parse_count(text, what="value")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def number(text: str) -> float:
    """argparse type: a number between ±1e18."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shorten(text)!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{shorten(text)!r} is not a finite number")
    if abs(value) >= _LARGEST:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is out of range; give a number below {_LARGEST:g}")
    return value


def free_gib(text: str) -> float:
    """argparse type: memory of a card that is free, from 0 GiB."""
    value = number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is out of range; give GiB from 0")
    return value


def word(text: str) -> str:
    """argparse type: a name that is not empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name is given; leave the option out or name one")
    return text


class Once(argparse.Action):
    """Stores a value and refuses a second one: the last of several would win without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - the signature is argparse's
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            raise InputError(f"{option_string} is given twice; name one, or use trilemma compare for several")
        setattr(namespace, self.dest, values)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    group.add_argument("--explain", action="store_true", help="show formula, inputs and source of each line")


def add_profile_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", type=word, metavar="NAME", help="speed by this profile (see trilemma calibrate serving)"
    )


def add_free_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--free-gib", type=free_gib, metavar="X", help="GiB of each card that other processes leave free"
    )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="catalogue name, hub id, config.json, folder, *.safetensors or *.gguf"
    )
    add_models_dir(parser)


def add_models_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", metavar="DIR", help="look hub ids up as DIR/<org>--<name>/config.json first")


def add_cluster_arguments(
    parser: argparse.ArgumentParser, *, required: bool = True, several: bool = False, host: bool = False
) -> None:
    """``several`` candidates; ``host``: the command uses the memory around the cards."""
    group = parser.add_argument_group("GPUs")
    text = "accelerator and how many, such as h200-sxm:8; a catalogue name or an accelerator file"
    if several:
        group.add_argument(
            "--gpu", metavar="G[:N]", action="append", required=required, help=f"{text}; give it once per candidate"
        )
    else:
        group.add_argument("--gpu", metavar="G[:N]", required=required, action=Once, help=text)
    group.add_argument("--nodes", type=whole_number, metavar="N", help="machines (default: as few as hold the GPUs)")
    group.add_argument(
        "--gpus-per-node", type=whole_number, metavar="N", help="GPUs in one machine (default: the card's usual)"
    )
    add_network_arguments(group)
    if host:
        add_host_argument(group)


def add_network_arguments(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--network",
        metavar="RATE",
        action=Once,
        help="network between nodes, of one node: 10GbE, 8x400Gb/s, 50GB/s (default: the card's usual)",
    )
    group.add_argument(
        "--oversubscription",
        type=number,
        metavar="R",
        help="how many times the network's edge is wider than its core (default 1)",
    )


def read_network(arguments: argparse.Namespace, cluster: Cluster) -> Cluster:
    """``cluster`` with the network that ``--network`` and ``--oversubscription`` state."""
    from trilemma.hardware.network import on_network

    return on_network(cluster, arguments.network, arguments.oversubscription)


def add_host_argument(group: argparse._ActionsContainer) -> None:
    text = "memory of the host, for weights that lie there: DDR5-5600x2, epyc-9004, or GB/s such as 89.6"
    group.add_argument("--host", metavar="HOST", action=Once, help=text)


def read_host(arguments: argparse.Namespace) -> Host | None:
    """The host that ``--host`` names, None where it is to be assumed."""
    from trilemma.hardware.hosts import parse_host

    stated = getattr(arguments, "host", None)
    return None if stated is None else parse_host(stated)


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("layout")
    for name, text in (
        ("tp", "tensor parallel (default: what pp and dp leave of the GPUs)"),
        ("pp", "pipeline parallel (default 1)"),
        ("dp", "data parallel: replicas of the attention part (default 1)"),
        ("dcp", "decode context parallel: splits cached tokens inside tp (default 1)"),
    ):
        group.add_argument(f"--{name}", type=whole_number, metavar="N", help=text)
    group.add_argument("--ep", action="store_true", help="spread whole experts over tp x dp instead of splitting each")


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument("--isl", type=whole_number, metavar="TOKENS", help="mean prompt length")
    group.add_argument("--osl", type=whole_number, metavar="TOKENS", help="mean output length")
    group.add_argument("--concurrency", type=whole_number, metavar="N", help="requests running at once")
    group.add_argument("--rate", type=number, metavar="PER_S", help="requests arriving per second")
    group.add_argument(
        "--context", type=whole_number, metavar="TOKENS", help="longest request to admit (prompt + output)"
    )
    group.add_argument(
        "--prefix-hit", type=number, default=0.0, metavar="SHARE", help="share of prompt tokens found in cache"
    )
    group.add_argument("--ttft", type=number, metavar="MS", help="target: time to first token")
    group.add_argument("--tpot", type=number, metavar="MS", help="target: time per output token")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine",
        type=word,
        default=DEFAULT_ENGINE,
        metavar="NAME[@VERSION]",
        help="engine and version (default: newest vLLM known)",
    )
    group.add_argument("--memory-fraction", type=number, metavar="F", help="share of the card the engine may use")
    group.add_argument("--max-seqs", type=whole_number, metavar="N", help="most sequences in one step")
    group.add_argument("--max-batched-tokens", type=whole_number, metavar="N", help="most tokens in one step")
    group.add_argument("--kv-dtype", type=word, metavar="FORMAT", help="number format of the KV cache (auto, fp8, …)")
    group.add_argument(
        "--precision",
        type=word,
        metavar="SCHEME",
        help="quantise the weights: bf16, fp8, w8a8, awq, nvfp4, … (default: as is)",
    )
    group.add_argument(
        "--draft",
        type=word,
        metavar="METHOD[:TOKENS[:SHARE]]",
        help="speculative decoding, such as mtp:3, or mtp:3:0.8 where drafts are accepted at this rate",
    )
    group.add_argument("--eager", action="store_true", help="no CUDA graphs")


def read_weights(arguments: argparse.Namespace, accelerator: Accelerator) -> Precision:
    """The model that the arguments name with its weights as published, or as ``--precision`` asks for them."""
    from trilemma.models.resolve import load_model
    from trilemma.search.space import precisions

    model = load_model(arguments.model, models_dir=arguments.models)
    return precisions(model, accelerator, [arguments.precision or "as published"])[0]


def read_cluster(arguments: argparse.Namespace, gpu: str | None = None, *, mixed: bool = False) -> Cluster:
    """The cluster that ``--gpu``, ``--nodes``, ``--gpus-per-node`` and ``--host`` describe; ``mixed``: of any kinds of cards."""
    from trilemma.hardware.cluster import Cluster
    from trilemma.hardware.mixed import parse_gpus

    named = gpu if gpu is not None else arguments.gpu
    accelerator, gpus, cards = parse_gpus(named)
    if cards and (not mixed or arguments.nodes or arguments.gpus_per_node):
        raise InputError(
            f"--gpu {shorten(named)}: cards of several kinds are for trilemma fit and check, in one machine without --nodes"
        )
    per_node = arguments.gpus_per_node or min(accelerator.gpus_per_node, gpus)
    if arguments.nodes:
        if arguments.gpus_per_node and arguments.nodes * arguments.gpus_per_node != gpus:
            raise InputError(
                f"--nodes {arguments.nodes} x --gpus-per-node {per_node} is not the {counted(gpus, 'GPU')} of --gpu"
            )
        if gpus % arguments.nodes:
            raise InputError(f"--nodes {arguments.nodes} does not divide the {counted(gpus, 'GPU')} of --gpu")
        per_node = gpus // arguments.nodes
    cluster = Cluster(
        accelerator=accelerator,
        gpus=gpus,
        gpus_per_node=gpus if cards else per_node,
        host=read_host(arguments),
        cards=cards,
    )
    return read_network(arguments, cluster)


def read_workload(arguments: argparse.Namespace) -> Serving:
    from trilemma.workloads import Serving

    return Serving(
        isl=arguments.isl,
        osl=arguments.osl,
        concurrency=arguments.concurrency,
        rate=arguments.rate,
        context=arguments.context,
        prefix_hit=arguments.prefix_hit,
        ttft_ms=arguments.ttft,
        tpot_ms=arguments.tpot,
    )


def read_draft(text: str) -> Draft:
    """``mtp``, ``mtp:3`` or ``mtp:3:0.8``: method, drafted tokens and the share of drafts that is accepted."""
    from trilemma.plans import Draft

    method, _, rest = text.partition(":")
    tokens, _, share = rest.partition(":")
    try:
        acceptance = float(share) if share else None
    except ValueError:
        acceptance = -1.0
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise InputError(f"--draft {text[:80]!r}: the share of accepted drafts is a number from 0 to 1")
    count = parse_count(tokens, what="--draft tokens") if tokens else 1
    if not 1 <= count <= MOST_DRAFTED:
        raise InputError(f"--draft {text[:80]!r}: a step drafts from 1 to {MOST_DRAFTED} tokens")
    return Draft(method=method, tokens=count, acceptance=acceptance)


def read_plan(
    arguments: argparse.Namespace, *, gpus: int, context: int | None, quantization: str | None = None
) -> Plan:
    """One plan from layout and engine options; tp takes the GPUs that pp and dp leave.

    Engines that give cards layers in turn unless told otherwise have pp take them all.
    """
    from trilemma.engines import traits_of
    from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions

    name, _, version = arguments.engine.partition("@")
    in_turn = traits_of(name).splits == "layers or rows" and arguments.tp is None and arguments.dp is None
    pp, dp = arguments.pp or (gpus if in_turn else 1), arguments.dp or 1
    if arguments.tp is None and gpus % (pp * dp):
        raise InputError(f"--pp {pp} x --dp {dp} does not divide the {counted(gpus, 'GPU')} of --gpu")
    tp = arguments.tp or gpus // (pp * dp)
    if tp * pp * dp != gpus:
        raise InputError(f"--tp {tp} x --pp {pp} x --dp {dp} is {tp * pp * dp} GPUs, but --gpu names {gpus}")
    draft = None
    if arguments.draft:
        draft = read_draft(arguments.draft)
    options = ServeOptions(
        memory_fraction=arguments.memory_fraction,
        context=context,
        max_seqs=arguments.max_seqs,
        max_batched_tokens=arguments.max_batched_tokens,
        kv_dtype=arguments.kv_dtype,
        quantization=quantization,
        eager=arguments.eager,
    )
    layout = Layout(tp=tp, pp=pp, dp=dp, ep=tp * dp if arguments.ep else 1, dcp=arguments.dcp or 1)
    return Plan(
        engine=EngineRef(name=name, version=version or None),
        pools=(Pool(layout=layout, options=options, draft=draft),),
    )
