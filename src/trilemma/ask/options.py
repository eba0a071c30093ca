"""Every option of serving, declared once: its name, how it is read, which questions take it, and the noun that it is a field of.

The command line makes its flags from these rows and the Python functions their keywords, so a new option is a new row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

from trilemma.ask.reading import (
    as_given,
    free_gib,
    milliseconds,
    names,
    number,
    pixels,
    text,
    truth,
    whole_number,
    word,
)
from trilemma.errors import InputError, UnknownName
from trilemma.versions import DEFAULT_ENGINE
from trilemma.workloads import SAMPLING

OptionReader = Callable[[Any], Any]
#: What an option is a field of: the load, the engine's options, the degrees of a layout, or nothing alone.
Noun = Literal["load", "engine", "degree", ""]
FIT, PLAN, COMPARE, CHECK, UPGRADE, RECOMMEND = "fit", "plan", "compare", "check", "upgrade", "recommend"
#: Questions that search what is not settled: there a format may be several.
SEARCHES = (PLAN, COMPARE, RECOMMEND)


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """What is different about an option where plans are searched."""

    help: str
    read: OptionReader | None = None
    metavar: str | None = None
    default: Any = None
    maybe: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """``name`` is its word in Python; on the command line it is ``--name`` with hyphens.

    ``of`` are the questions that take it, ``python_only`` those of them whose command says it otherwise, ``required_of`` those
    whose command insists on it. ``noun`` is what it
    becomes a field of, under ``field`` where that is not its name. ``searched`` takes the place where plans are searched.
    ``maybe``: True, False, or left open (None).
    """

    name: str
    help: str
    of: tuple[str, ...]
    read: OptionReader = as_given
    metavar: str | None = None
    group: str = ""
    noun: Noun = ""
    field: str = ""
    default: Any = None
    choices: tuple[Any, ...] | None = None
    maybe: bool = False
    aliases: tuple[str, ...] = ()
    once: bool = False
    python_only: tuple[str, ...] = ()
    required_of: tuple[str, ...] = ()
    searched: Variant | None = None

    def on(self, question: str) -> Option:
        """The option as ``question`` takes it."""
        if self.searched is None or question not in SEARCHES:
            return self
        other = self.searched
        return replace(
            self, help=other.help, read=other.read or self.read, metavar=other.metavar or self.metavar,
            default=self.default if other.default is None and not other.maybe else other.default, maybe=other.maybe,
            searched=None,
        )  # fmt: skip


_SERVING = (FIT, PLAN, COMPARE, RECOMMEND)
#: Questions that are told of a cluster.
_CLUSTERED = (FIT, PLAN, COMPARE)
_ONE = (FIT, PLAN)
#: Questions that can be told the load.
_LOADED = (*_SERVING, CHECK)
#: The shape of the cluster, the same for every question.
GPUS: tuple[Option, ...] = (
    Option(
        name="nodes",
        of=_CLUSTERED,
        read=whole_number,
        metavar="N",
        group="GPUs",
        help="machines (default: as few as hold the GPUs)",
    ),
    Option(
        name="gpus_per_node",
        of=_CLUSTERED,
        read=whole_number,
        metavar="N",
        group="GPUs",
        help="GPUs in one machine (default: the card's usual)",
    ),
    Option(
        name="network",
        of=(*_CLUSTERED, CHECK),
        read=text,
        metavar="RATE",
        group="GPUs",
        once=True,
        help="network between nodes, of one node: 10GbE, 8x400Gb/s, 50GB/s (default: the card's usual)",
    ),
    Option(
        name="oversubscription",
        of=(*_CLUSTERED, CHECK),
        read=number,
        metavar="R",
        group="GPUs",
        help="how many times the network's edge is wider than its core (default 1)",
    ),
)
POWER_CAP = Option(name="power_cap", of=_CLUSTERED, read=number, metavar="W", group="GPUs",
                   help="watts that each GPU may draw, as nvidia-smi -pl sets them (default: its limit)")  # fmt: skip
#: In the order of the help, group by group.
OPTIONS: tuple[Option, ...] = (
    Option(name="models", of=(*_SERVING, CHECK, UPGRADE), read=text, metavar="DIR",
           help="look hub ids up as DIR/<org>--<name>/config.json first"),
    *GPUS,
    Option(name="host", of=(FIT, CHECK), metavar="HOST", group="GPUs", once=True,
           help="memory of the host, for weights that lie there: DDR5-5600x2, epyc-9004, or GB/s such as 89.6"),
    POWER_CAP,
    Option(name="storage", of=(FIT,), read=text, metavar="RATE", group="GPUs",
           help="what a node reads of the storage where weights lie, such as 2GB/s (default: unknown)"),
    Option(name="pools", of=(PLAN,), read=text, group="layout", default="both",
           choices=("aggregated", "disaggregated", "both"),
           help="prefill and decode in the same engines, in pools of their own, or whichever is better (default)"),
    Option(name="tp", of=_ONE, read=whole_number, metavar="N", group="layout",
           help="tensor parallel (default: what pp and dp leave of the GPUs)", searched=Variant(help="tensor parallel")),
    Option(name="pp", of=_ONE, read=whole_number, metavar="N", group="layout", help="pipeline parallel (default 1)",
           searched=Variant(help="pipeline parallel")),
    Option(name="dp", of=_ONE, read=whole_number, metavar="N", group="layout",
           help="data parallel: replicas of the attention part (default 1)",
           searched=Variant(help="data parallel replicas")),
    Option(name="dcp", of=(FIT,), read=whole_number, metavar="N", group="layout",
           help="decode context parallel: splits cached tokens inside tp (default 1)"),
    Option(name="ep", of=_ONE, read=truth, group="layout", default=False,
           help="spread whole experts over tp x dp instead of splitting each",
           searched=Variant(help="spread whole experts over tp x dp, or never", maybe=True)),
    Option(name="replicas", of=(FIT,), read=whole_number, metavar="N", group="several engines",
           help="engines of the layout side by side, behind a router (default 1)"),
    Option(name="prefill", of=(FIT,), metavar="NxLAYOUT", group="several engines",
           help="engines that prefill alone, such as 2xTP2 or 3xTP1DP8EP8; give both pools"),
    Option(name="decode", of=(FIT,), metavar="NxLAYOUT", group="several engines",
           help="engines that decode alone, such as 2xTP2 or 3xTP1DP8EP8; give both pools"),
    Option(name="serve", of=SEARCHES, read=text, metavar="ISL/OSL", group="workload",
           help="prompt and output tokens, such as 4096/1024"),
    Option(name="trace", of=(PLAN,), metavar="FILE", group="workload",
           help="in place of a load: rank plans by what users see under these requests, simulated"),
    Option(name="requests", of=(PLAN,), read=whole_number, metavar="N", group="workload",
           help="requests of the trace at most (default 5,000)"),
    Option(name="isl", of=_LOADED, read=whole_number, metavar="TOKENS", group="workload", noun="load",
           help="mean prompt length", python_only=SEARCHES),
    Option(name="images", of=(FIT, CHECK), read=whole_number, metavar="N", group="workload", noun="load",
           help="images that come with each prompt; their tokens are added to the prompt length"),
    Option(name="image_size", of=(FIT, CHECK), read=pixels, metavar="WxH", group="workload", noun="load",
           help="pixels of an image, such as 1280x960 (default 1024x1024)"),
    Option(name="osl", of=_LOADED, read=whole_number, metavar="TOKENS", group="workload", noun="load",
           help="mean output length", python_only=SEARCHES),
    Option(name="concurrency", of=_LOADED, read=whole_number, metavar="N", group="workload", noun="load",
           help="requests running at once, over all GPUs"),
    Option(name="rate", of=_LOADED, read=number, metavar="PER_S", group="workload", noun="load",
           help="requests arriving per second"),
    Option(name="context", of=_SERVING, read=whole_number, metavar="TOKENS", group="workload", noun="load",
           help="longest request to admit (prompt + output)",
           searched=Variant(help="longest request to admit (default ISL + OSL)")),
    Option(name="sampling", of=_LOADED, read=text, group="workload", noun="load", default="greedy", choices=SAMPLING,
           help="what requests ask of the sampler: the likeliest token (default), top-k or top-p, or penalties as well"),
    Option(name="prefix_hit", of=_LOADED, read=number, metavar="SHARE", group="workload", noun="load", default=0.0,
           help="share of prompt tokens found in cache"),
    Option(name="ttft", of=_LOADED, read=milliseconds, metavar="MS", group="workload", noun="load", field="ttft_ms",
           help="target: mean time to first token, in milliseconds or as 2s"),
    Option(name="tpot", of=_LOADED, read=milliseconds, metavar="MS", group="workload", noun="load", field="tpot_ms",
           help="target: mean time per output token, in milliseconds or as 40ms"),
    Option(name="confidence", of=(PLAN, RECOMMEND), read=number, metavar="P", group="workload",
           help="chance with which each target has to hold, such as 0.8 (default 0.5: as likely as not)"),
    Option(name="engine", of=_SERVING, metavar="NAME[@VERSION]", group="engine", default=DEFAULT_ENGINE,
           help="engine and version (default: newest vLLM known)"),
    Option(name="memory_fraction", of=_ONE, read=number, metavar="F", group="engine", noun="engine",
           help="share of the card the engine may use"),
    Option(name="max_seqs", of=_ONE, read=whole_number, metavar="N", group="engine", noun="engine",
           help="most sequences in one step"),
    Option(name="max_batched_tokens", of=_ONE, read=whole_number, metavar="N", group="engine", noun="engine",
           help="most tokens in one step"),
    Option(name="kv_dtype", of=_SERVING, read=word, metavar="FORMAT", group="engine",
           help="number format of the KV cache (auto, fp8, …)",
           searched=Variant(help="number formats of the KV cache: auto, fp8, … (default: all that suit the card)",
                            read=names, metavar="FORMAT[,…]")),
    Option(name="precision", of=_SERVING, read=word, metavar="SCHEME", group="engine",
           help="quantise the weights: bf16, fp8, w8a8, awq, nvfp4, … (default: as is)",
           searched=Variant(help="as-is, bf16, fp8, w8a8, awq, nvfp4, … (default: all that fit the card)",
                            read=names, metavar="SCHEME[,…]")),
    Option(name="draft", of=(FIT, CHECK), metavar="METHOD[:TOKENS[:SHARE]]", group="engine",
           help="speculative decoding, such as mtp:3, or mtp:3:0.8 where engines print 0.8 of the drafted tokens as accepted"),
    Option(name="eager", of=_ONE, read=truth, group="engine", noun="engine", default=False, help="no CUDA graphs"),
    Option(name="top", of=(PLAN, RECOMMEND), read=whole_number, metavar="N", default=5,
           help="plans or cards to show (default 5)"),
    Option(name="front", of=(PLAN,), read=as_given, default=8, python_only=(PLAN,),
           help="further plans of the Pareto front in full"),
    Option(name="old", of=(UPGRADE,), read=text, metavar="V1", python_only=(UPGRADE,),
           help="the version that runs today"),
    Option(name="new", of=(UPGRADE,), read=text, metavar="V2", python_only=(UPGRADE,), help="the version to go to"),
    Option(name="host_memory", of=(CHECK,), read=free_gib, metavar="GIB",
           help="memory of a node's host, for training that keeps state there"),
    Option(name="log", of=(CHECK,), metavar="FILE",
           help="log of a real start: measured lines replace predicted ones"),
    Option(name="pool", of=(CHECK,), read=text, metavar="NAME",
           help="the engine to check of a manifest that starts several, such as prefill or decode"),
    Option(name="free_gib", of=(FIT, CHECK, UPGRADE), read=free_gib, metavar="X",
           help="GiB of each card that other processes leave free"),
    Option(name="profile", of=(FIT, PLAN, CHECK), read=word, metavar="NAME",
           help="speed by this profile (see trilemma calibrate serving)"),
    Option(name="runs", of=(FIT,), read=word, metavar="FILE[,…]",
           help="start speed from measured points of this very deployment: results of measure serve or of a bench, or CSV"),
)  # fmt: skip


def options_of(question: str, table: tuple[Option, ...] = OPTIONS) -> dict[str, Option]:
    """Name → option, of those that ``question`` takes."""
    return {option.name: option.on(question) for option in table if question in option.of}


def option_words(options: SimpleNamespace, table: tuple[Option, ...], *, without: tuple[str, ...] = ()) -> list[str]:
    """The rows of ``table`` that ``options`` state as words of a command line, those at their defaults left out."""
    words: list[str] = []
    for one in table:
        value = getattr(options, one.name, None)
        if value is None or value == one.default or one.name in without:
            continue
        flag = f"--{(one.aliases or (one.name,))[0].replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            words += [flag, ",".join(map(str, value))]
        else:
            words += [flag, str(value)]
    return words


def settled(question: str, given: Mapping[str, Any], table: tuple[Option, ...] = OPTIONS) -> SimpleNamespace:
    """Every option of ``question``: as given and read, else its default. Raises `InputError` for what cannot be."""
    known = options_of(question, table)
    spelled = {alias: option.name for option in known.values() for alias in option.aliases}
    values = {name: option.default for name, option in known.items()}
    for word_, value in given.items():
        name = spelled.get(word_, word_)
        if name not in known:
            raise UnknownName(f"option of {question}", word_, known)
        if value is not None:
            values[name] = _read(known[name], value)
    return SimpleNamespace(**values)


def fields_of(noun: Noun, values: SimpleNamespace, table: tuple[Option, ...] = OPTIONS) -> dict[str, Any]:
    """The options among ``values`` that are fields of ``noun``, by the names of these fields."""
    return {
        option.field or option.name: getattr(values, option.name)
        for option in table
        if option.noun == noun and hasattr(values, option.name)
    }


def _read(option: Option, value: Any) -> Any:
    try:
        found = option.read(value)
    except InputError as error:
        raise InputError(f"`{option.name}` {error}") from None
    if option.choices is not None and found not in option.choices:
        raise InputError(f"`{option.name}` {found!r} is not known; use {', '.join(map(str, option.choices))}")
    return found
