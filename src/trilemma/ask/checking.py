"""A pasted command judged: which engine, which model, which cards and which load it means, and whether it will start."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma import engines
from trilemma.ask.answers import Answer
from trilemma.ask.command_load import admitted, load_of, with_acceptance
from trilemma.ask.exported import expected_load, exported_weights, prediction_beside
from trilemma.ask.logged import with_failed_sum
from trilemma.ask.nouns import counts, surrounded
from trilemma.ask.pictures import with_images
from trilemma.ask.profiles import terms_of
from trilemma.ask.unknown_models import UnknownModel
from trilemma.commands.bare_json import UNQUOTED, quoted
from trilemma.commands.named_files import printed
from trilemma.errors import InputError, PlanWarning, UnknownName, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.mixed import parse_gpus
from trilemma.quantities import GIB
from trilemma.question import Question

if TYPE_CHECKING:
    from trilemma.ask.compared import VersionsCompared
    from trilemma.engines.base import EngineCommand
    from trilemma.models.architecture import Model

NO_CARDS = "the command does not say which cards it runs on; name them, such as `gpu` h100-sxm:8"


def words_of(command: str | Sequence[str]) -> list[str]:
    """A command as words; text is split as a shell would, after lines joined by backslashes. Bare JSON in it is one word, as is
    text that writes a file for its command first: a script."""
    if not isinstance(command, str):
        words = [str(word) for word in command]
        return [quoted(words[0])] if len(words) == 1 and any(map(str.isspace, words[0])) else words
    try:
        words = shlex.split(quoted(command.replace("\\\n", " ")))
        return words if printed(words) is None else [quoted(command)]
    except ValueError as error:
        raise InputError(f"{shorten(command)!r} is no command line: {error}; give a list of its words") from None


def with_pasted(answer: Answer, command: str | Sequence[str]) -> Answer:
    """``answer`` with what must be said of the text that was pasted: JSON that a shell would take apart."""
    from trilemma.estimate.doubt import with_warnings

    whole = command if isinstance(command, str) else str(command[0]) if len(command) == 1 else ""
    return answer if quoted(whole) == whole else Answer.of(with_warnings(answer, (UNQUOTED,)))


def checked(words: Sequence[str], gpu: Any, options: SimpleNamespace) -> Answer:
    """Will the command start, and if not, at which stage does it die and what would make it?"""
    from trilemma.engines.extract import extract

    engine, own_words = extract(words, pool=options.pool)
    return checked_engine(engine, own_words, gpu, options, pasted=words)


def checked_engine(
    engine: str, own_words: list[str], gpu: Any, options: SimpleNamespace, *, pasted: Sequence[str] = ()
) -> Answer:
    """`checked` for an engine and its own words, as `extract` tells them; ``pasted`` is what they stood in."""
    from trilemma.diagnosis.start_log import start_in
    from trilemma.engines.loading import while_loading
    from trilemma.engines.training import trainable
    from trilemma.estimate.checking import check_command
    from trilemma.estimate.doubt import with_warnings
    from trilemma.search.answer import with_remedies

    if engine in trainable():
        from trilemma.ask.checking_training import checked_training

        return checked_training(engine, own_words, gpu, options)
    command = engines.get(engine).read(own_words)
    beside = prediction_beside(pasted)
    command = with_acceptance(options.draft, on_cards(gpu, command))
    cluster, named, warnings = cluster_of_command(gpu, command)
    try:
        model, elsewhere = exported_weights(beside, command, options.models) or model_of_command(
            command, options.models
        )
    except UnknownName as error:
        raise UnknownModel(command, error) from None
    cluster = surrounded(cluster, options)
    workload, expected = expected_load(beside, command.plan)
    workload = admitted(with_images(load_of(options, workload), model, command.plan), command)
    question = Question(
        model=while_loading(model, command.plan.pool.options),
        cluster=cluster,
        workload=workload,
        plan=command.plan,
        free_bytes=None if options.free_gib is None else options.free_gib * GIB,
        served_as=command.model,
        terms=terms_of(options.profile),
    )
    warnings = (*warnings, *_remote_code(command, model))
    log = None if options.log is None else start_in(options.log, engine)[1]
    answer = with_remedies(check_command(command, question, log=log), gpus=named)
    if options.log is not None:
        answer = with_failed_sum(answer, options.log)
    return Answer.of(with_warnings(answer, (*elsewhere, *expected, *warnings)))


def upgraded(words: Sequence[str], gpu: Any, options: SimpleNamespace) -> VersionsCompared:
    """What version ``options.new`` of the engine changes for a command that runs under ``options.old``."""
    from trilemma.ask.compared import VersionsCompared
    from trilemma.engines.extract import extract
    from trilemma.engines.loading import while_loading
    from trilemma.estimate.upgrade import upgrade

    engine, own = extract(words)
    if engine not in engines.readable():
        raise InputError(f"{engine} trains models; upgrade compares versions of {', '.join(engines.readable())}")
    command = on_cards(gpu, engines.get(engine).read(own))
    model, _ = exported_weights(prediction_beside(words), command, options.models) or model_of_command(
        command, options.models
    )
    cluster, _, _ = cluster_of_command(gpu, command)
    if cluster.cards:
        raise InputError(
            f"upgrade compares versions on cards of one kind, and `gpu` names {cluster.name}; name one kind"
        )
    return VersionsCompared.of(
        upgrade(
            own,
            engine=engine,
            old=options.old,
            new=options.new,
            model=while_loading(model, command.plan.pool.options),
            cluster=cluster,
            free_bytes=None if options.free_gib is None else options.free_gib * GIB,
        )
    )


def model_of_command(command: EngineCommand, models: str | None) -> tuple[Model, tuple[PlanWarning, ...]]:
    """The model that a command names, its configuration as the command overrides it.

    A folder of the machine where it will run is known here by its name alone, and a GGUF file or repository holds the model as
    it is published so.
    """
    from trilemma.engines.launch import config_overrides
    from trilemma.engines.loading import as_named_gguf
    from trilemma.models.elsewhere import load_from_anywhere

    overrides = config_overrides(command.plan.pool.options.extra)
    model, by_name = load_from_anywhere(command.model, models_dir=models, overrides=overrides)
    model = as_named_gguf(model, command.model, command.plan.engine.name)
    if not by_name:
        return model, ()
    message = f"{shorten(command.model)} is not on this machine; taken by its name as {model.name}"
    return model, (PlanWarning(code="model-elsewhere", message=message),)


def _remote_code(command: EngineCommand, model: Model) -> tuple[PlanWarning, ...]:
    """That the model's repository brings code of its own, where the command does not allow it."""
    from trilemma.models.remote_code import needs_remote_code

    flag = engines.get(command.plan.engine.name).flags().flags.get("trust-remote-code")
    allowed = command.facts.get("server", {}).get("trust-remote-code")
    if flag is None or allowed or not (needs_remote_code(command.model) or needs_remote_code(model.name)):
        return ()
    message = (
        f"{shorten(command.model)} brings code of its own: without --trust-remote-code the engine stops before it loads"
    )
    return (PlanWarning(code="needs-remote-code", message=message),)


def on_cards(gpu: Any, command: EngineCommand) -> EngineCommand:
    """A command that takes every card it finds, on the cards that ``gpu`` counts."""
    from trilemma.engines.launch import on_every_card

    if isinstance(gpu, Cluster):
        return on_every_card(command, gpu.gpus)
    if not isinstance(gpu, str):
        return command
    if "+" in gpu:
        return on_every_card(command, parse_gpus(gpu)[1])
    number = gpu.rpartition(":")[2] if ":" in gpu else ""
    return on_every_card(command, int(number)) if number.isdecimal() and len(number) < 7 else command


def cluster_of_command(gpu: Any, command: EngineCommand) -> tuple[Cluster, int, tuple[PlanWarning, ...]]:
    """The cards that the command occupies: as many as its layout takes, of those named; and how many are named."""
    accelerator, named, cards, counted = cards_of(gpu)
    needed = int(command.plan.pool.layout.gpus)
    if counted and needed > named:
        raise InputError(
            f"the command takes {needed} GPUs, but `gpu` names {named}; lower its parallel sizes or name more"
        )
    main = command.plan.pool.options.extra.get("main-gpu")
    if counted and isinstance(main, int) and main >= named:
        raise InputError(f"--main-gpu {main} is none of the {named} card(s) that `gpu` names; count from 0")
    used = cards[:needed] if len({card.id for card in cards[:needed]}) > 1 else ()
    shape = replace(gpu, cards=()) if isinstance(gpu, Cluster) else Cluster(accelerator=accelerator)
    cluster = replace(shape, gpus=needed, gpus_per_node=min(accelerator.gpus_per_node, needed), cards=used)
    return cluster, max(named, needed), idle_warnings(needed, named, counted=counted)


def cards_of(gpu: Any) -> tuple[Accelerator, int, tuple[Accelerator, ...], bool]:
    """(first accelerator, how many, each one where kinds differ, whether they are counted) of what ``gpu`` names or is."""
    if gpu is None:
        raise InputError(NO_CARDS)
    if isinstance(gpu, Cluster):
        return gpu.accelerator, gpu.gpus, gpu.cards, True
    if isinstance(gpu, Accelerator):
        return gpu, 1, (), False
    text = str(gpu)
    accelerator, named, cards = parse_gpus(text)
    return accelerator, named, cards, "+" in text or (counts(text) and text.rpartition(":")[2].isdecimal())


def idle_warnings(needed: int, named: int, *, counted: bool) -> tuple[PlanWarning, ...]:
    """Cards that are named and that the command leaves idle."""
    if not counted or needed >= named:
        return ()
    message = f"the command uses {needed} of the {named} GPUs; the others stay idle"
    return (PlanWarning(code="idle-gpus", message=message),)
