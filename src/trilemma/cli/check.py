"""``trilemma check``: an engine's own command, judged before it runs, or against the log of its start."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trilemma.cli.arguments import (
    add_free_argument,
    add_host_argument,
    add_models_dir,
    add_network_arguments,
    add_output_arguments,
    add_profile_argument,
    free_gib,
    read_host,
    read_network,
)
from trilemma.cli.output import show_estimate
from trilemma.errors import Caution, InputError, UnknownName

if TYPE_CHECKING:
    from trilemma.engines.base import EngineCommand
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.architecture import Model

#: The ending of a GGUF file, and the number of a part of one.
_GGUF = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trilemma check [--gpu G[:N]] [--free-gib X] [--log FILE] [options] -- ENGINE COMMAND…"
    parser.add_argument(
        "--gpu",
        metavar="G[:N]",
        help="the cards it runs on, such as h100-sxm:8 (N defaults to the command's) or rtx-4090+rtx-3090",
    )
    add_host_argument(parser)
    add_network_arguments(parser)
    add_free_argument(parser)
    parser.add_argument("--log", metavar="FILE", help="log of a real start: measured lines replace predicted ones")
    parser.add_argument(
        "--host-memory",
        type=free_gib,
        metavar="GIB",
        help="memory of a node's host, for training that keeps state there",
    )
    parser.add_argument(
        "--pool",
        metavar="NAME",
        help="the engine to check of a manifest that starts several, such as prefill or decode",
    )
    add_models_dir(parser)
    add_profile_argument(parser)
    add_output_arguments(parser)
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- ENGINE COMMAND…", help="as you would run or deploy it"
    )


def run(arguments: argparse.Namespace) -> int:
    from trilemma import engines
    from trilemma.cli.check_exported import expected_load, exported_weights, prediction_beside
    from trilemma.engines.extract import extract
    from trilemma.engines.loading import while_loading
    from trilemma.engines.training import trainable
    from trilemma.estimate.checking import check_command
    from trilemma.quantities import GIB
    from trilemma.question import Question
    from trilemma.search.answer import with_remedies

    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise InputError(
            "no engine command given; put it after --, such as trilemma check --gpu h100:8 -- vllm serve MODEL"
        )
    engine, own_words = extract(words, pool=arguments.pool)
    if engine in trainable():
        from trilemma.cli.check_training import check

        return check(arguments, engine, own_words)
    command = engines.get(engine).read(own_words)
    beside = prediction_beside(words)
    model, elsewhere = exported_weights(beside, command, arguments.models) or model_of(command, arguments.models)
    command = on_cards(arguments.gpu, command)
    cluster, named, cautions = cluster_of(arguments.gpu, command)
    cluster = read_network(arguments, replace(cluster, host=read_host(arguments)))
    model = while_loading(model, command.plan.pool.options)
    free_bytes = None if arguments.free_gib is None else arguments.free_gib * GIB
    workload, expected = expected_load(beside, command.plan)
    question = Question(model=model, cluster=cluster, workload=workload, plan=command.plan, free_bytes=free_bytes)
    answer = check_command(command, question, log=arguments.log)
    if arguments.log is None:
        answer = with_remedies(answer, gpus=named)
    return show_estimate(
        replace(answer, warnings=(*elsewhere, *expected, *cautions, *answer.warnings)),
        as_json=arguments.json,
        explain=arguments.explain,
    )


def model_of(command: EngineCommand, models_dir: str | None) -> tuple[Model, tuple[Caution, ...]]:
    """The model that a command names, its configuration as the command overrides it.

    A folder of the machine where it will run is known here by its name alone.
    """
    from trilemma.engines.launch import config_overrides
    from trilemma.models.resolve import load_model

    name, overrides = command.model, config_overrides(command.plan.pool.options.extra)
    known = _GGUF.sub("", PurePosixPath(name).name)
    if not name.startswith(("/", "./", "../", "~")) or Path(name).expanduser().exists():
        return load_model(name, models_dir=models_dir, overrides=overrides), ()
    try:
        model = load_model(known, models_dir=models_dir, overrides=overrides)
    except UnknownName:
        raise InputError(
            f"{name} is not here, and {known!r} is no known model; give a path that exists or a hub id"
        ) from None
    message = f"{name} is not on this machine; taken by its name as {model.name}"
    return model, (Caution(code="model-elsewhere", message=message),)


def on_cards(gpu: str | None, command: EngineCommand) -> EngineCommand:
    """A command that takes every card it finds, on the cards that ``--gpu`` counts."""
    from trilemma.engines.launch import on_every_card
    from trilemma.hardware.mixed import parse_gpus

    if gpu is not None and "+" in gpu:
        return on_every_card(command, parse_gpus(gpu)[1])
    number = gpu.rpartition(":")[2] if gpu and ":" in gpu else ""
    return on_every_card(command, int(number)) if number.isdigit() and len(number) < 7 else command


def cluster_of(gpu: str | None, command: EngineCommand) -> tuple[Cluster, int, tuple[Caution, ...]]:
    """The cards that the command occupies: as many as its layout takes, of those named; and how many are named."""
    from trilemma.hardware.cluster import Cluster
    from trilemma.hardware.mixed import parse_gpus

    if gpu is None:
        raise InputError("the command does not say which cards it runs on; name them, such as --gpu h100-sxm:8")
    accelerator, named, cards = parse_gpus(gpu)
    needed = int(command.plan.pool.layout.gpus)
    counted = "+" in gpu or (":" in gpu and gpu.rpartition(":")[2].isdigit())
    if counted and needed > named:
        raise InputError(
            f"the command takes {needed} GPUs, but --gpu names {named}; lower its parallel sizes or name more"
        )
    main = command.plan.pool.options.extra.get("main-gpu")
    if counted and isinstance(main, int) and main >= named:
        raise InputError(f"--main-gpu {main} is none of the {named} card(s) that --gpu names; count from 0")
    cautions: tuple[Caution, ...] = ()
    if counted and needed < named:
        message = f"the command uses {needed} of the {named} GPUs; the others stay idle"
        cautions = (Caution(code="idle-gpus", message=message),)
    used = cards[:needed] if len({card.id for card in cards[:needed]}) > 1 else ()
    cluster = Cluster(
        accelerator=accelerator, gpus=needed, gpus_per_node=min(accelerator.gpus_per_node, needed), cards=used
    )
    return cluster, max(named, needed), cautions
