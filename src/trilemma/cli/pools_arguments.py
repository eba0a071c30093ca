"""Plans of several engines on the command line: replicas side by side, or pools of prefill and decode."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from trilemma.cli.arguments import read_cluster, read_plan, whole_number
from trilemma.errors import InputError, shorten
from trilemma.quantities import counted

if TYPE_CHECKING:
    from trilemma.hardware.cluster import Cluster
    from trilemma.plans import Plan, Pool

_COUNT = re.compile(r"(?:(\d{1,7})\s*[x×]\s*)?(.*)", re.IGNORECASE | re.DOTALL)
_ALONE = ("gpu", "1 gpu", "one gpu")
_DEGREE = re.compile(r"\s*(tp|pp|dp|ep)(\d{1,7})", re.IGNORECASE)


def add_pools_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several engines")
    group.add_argument(
        "--replicas",
        type=whole_number,
        metavar="N",
        help="engines of the layout side by side, behind a router (default 1)",
    )
    for role in ("prefill", "decode"):
        group.add_argument(
            f"--{role}",
            metavar="NxLAYOUT",
            help=f"engines that {role} alone, such as 2xTP2 or 3xTP1DP8EP8; give both pools",
        )


def read_engines(
    arguments: argparse.Namespace, cluster: Cluster, *, context: int | None, quantization: str | None
) -> tuple[Plan, Cluster]:
    """The plan that the arguments name and the cards that it runs on: those of ``--gpu``, or as many as its pools take."""
    if arguments.prefill is None and arguments.decode is None:
        return _side_by_side(arguments, cluster, context=context, quantization=quantization), cluster
    _check(arguments)
    like = read_plan(arguments, gpus=cluster.gpus, context=context, quantization=quantization)
    prefill = replace(read_pool(arguments.prefill, "--prefill", like.pool), role="prefill", draft=None)
    decode = replace(read_pool(arguments.decode, "--decode", like.pool), role="decode")
    plan = replace(like, pools=(prefill, decode))
    from trilemma.hardware.catalogue import states_count

    if states_count(arguments.gpu):
        return plan, cluster
    counted = argparse.Namespace(**vars(arguments))
    counted.gpu = f"{arguments.gpu}:{plan.gpus}"
    return plan, read_cluster(counted)


def read_pool(text: str, flag: str, like: Pool) -> Pool:
    """``2xTP2``, ``TP4 PP2``, ``3xTP1DP8EP8`` or ``4 × 1 GPU``: so many engines of this layout, with the options of ``like``."""
    from trilemma.plans import Layout

    count, words = _COUNT.fullmatch(text).groups()  # type: ignore[union-attr]
    degrees: dict[str, int] = {}
    if words.strip().lower() in _ALONE:
        words = "TP1"
    at = 0
    while (found := _DEGREE.match(words, at)) is not None:
        name = found[1].lower()
        if name in degrees:
            raise InputError(f"{flag} {shorten(text)!r} gives {found[1]} twice")
        degrees[name], at = int(found[2]), found.end()
    if not degrees or words[at:].strip():
        raise InputError(
            f"{flag} {shorten(text)!r} is not a number of engines and their layout, such as 2xTP2 or TP4PP2"
        )
    whole = degrees.get("tp", 1) * degrees.get("dp", 1)
    if degrees.get("ep", 1) not in (1, whole):
        raise InputError(
            f"{flag} {shorten(text)!r}: experts are spread over all of tp x dp; give EP{whole} or leave it out"
        )
    return replace(like, layout=Layout(**degrees), replicas=1 if count is None else int(count))


def _check(arguments: argparse.Namespace) -> None:
    if arguments.prefill is None or arguments.decode is None:
        lacking = "prefill" if arguments.prefill is None else "decode"
        raise InputError(f"--{lacking} is missing: pools apart are two, such as --prefill 2xTP2 --decode 1xTP4")
    for name in ("replicas", "tp", "pp", "dp", "dcp", "ep"):
        if getattr(arguments, name):
            raise InputError(f"--{name} is of a plan without pools; state layouts in --prefill and --decode")


def _side_by_side(
    arguments: argparse.Namespace, cluster: Cluster, *, context: int | None, quantization: str | None
) -> Plan:
    replicas = arguments.replicas or 1
    if cluster.gpus % replicas:
        raise InputError(f"--replicas {replicas} does not divide the {counted(cluster.gpus, 'GPU')} of --gpu")
    plan = read_plan(arguments, gpus=cluster.gpus // replicas, context=context, quantization=quantization)
    return replace(plan, pools=(replace(plan.pool, replicas=replicas),))
