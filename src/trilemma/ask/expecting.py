"""What the estimator expects of the runs that files are of: from a command given, an answer given, or what the files say ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.errors import InputError, shorten, with_flags

if TYPE_CHECKING:
    from trilemma.diagnosis.expectation import Expectation
    from trilemma.diagnosis.findings import Case, Part, Reading
    from trilemma.estimate.estimate import Estimate
    from trilemma.question import Question

#: Kinds of records of a run that the estimator has figures for.
_MEASURED = ("serving-log", "engine-log", "training-log", "out-of-memory", "kineto-trace", "prometheus")
#: Facts in which files name the cards of a run.
_CARDS = ("names", "gpus", "device")
_GIVEN = "the command given"


def expecting(
    words: Sequence[str], gpu: Any, beside: Estimate | None, options: SimpleNamespace
) -> Callable[[Case], tuple[Mapping[str, Expectation], Sequence[str]]]:
    """A function from the files read to what is expected of each; errors of what was given are raised, others told."""

    def expect(case: Case) -> tuple[Mapping[str, Expectation], Sequence[str]]:
        files = [one for one in case.readings if any(part.kind in _MEASURED for part in one.parts)]
        if beside is not None:
            whole = expectation_of(beside, "the answer given", ())
            return {one.file: whole for one in files}, ()
        card = gpu if gpu is not None else _card_of(case)
        if words:
            given = _judged(words, card, options, _GIVEN)
            return {one.file: given for one in files}, ()
        return _from_files(files, card, options)

    return expect


def _from_files(
    files: Sequence[Reading], card: Any, options: SimpleNamespace
) -> tuple[Mapping[str, Expectation], Sequence[str]]:
    found: dict[str, Expectation] = {}
    lacking: list[str] = []
    for reading in files:
        told = _command_in(reading)
        if told is None:
            if any(part.kind in ("serving-log", "engine-log", "training-log") for part in reading.parts):
                lacking.append(
                    f"the command behind {reading.file} (-- COMMAND…, and --gpu): what this run should reach"
                )
            continue
        words, said = told
        try:
            found[reading.file] = _judged(_launched(words, card), card, options, said)
        except InputError as error:
            lacking.append(f"what {said} should reach: {with_flags(error)}")
    return found, lacking


def _command_in(reading: Reading) -> tuple[Sequence[str], str] | None:
    """The words of the command that a file holds, and where it stands."""
    parts = {part.kind: part for part in reading.parts}
    if "launch-command" in parts:
        part = parts["launch-command"]
        return part.whole, f"{reading.file}:{part.events[0].line}"
    if "engine-log" in parts:
        return _of_start(reading, parts["engine-log"])
    return None


def _of_start(reading: Reading, part: Part) -> tuple[Sequence[str], str] | None:
    from trilemma.engines import started_command

    try:
        return started_command(part.facts["engine"], part.whole), f"the start that {reading.file} logs"
    except InputError:
        return None


def _card_of(case: Case) -> str | None:
    """The one kind of card that the files name."""
    from trilemma.hardware.catalogue import find

    found: dict[str, None] = {}
    for part in (part for reading in case.readings for part in reading.parts):
        for name in _CARDS:
            told = part.facts.get(name, ())
            for text in (told,) if isinstance(told, str) else told if isinstance(told, list | tuple) else ():
                try:
                    found[find(str(text)).id] = None
                except InputError:
                    continue
    return next(iter(found)) if len(found) == 1 else None


def _launched(words: Sequence[str], card: Any) -> Sequence[str]:
    """A script whose launcher the log does not hold, started on every card that is counted."""
    from trilemma.hardware.mixed import parse_gpus

    if not words[0].endswith(".py") or not isinstance(card, str) or ":" not in card:
        return words
    accelerator, gpus, _ = parse_gpus(card)
    node = min(accelerator.gpus_per_node, gpus)
    if gpus % node:
        return words
    return ["torchrun", "--nnodes", str(gpus // node), "--nproc_per_node", str(node), *words]


def _judged(words: Sequence[str], card: Any, options: SimpleNamespace, said: str) -> Expectation:
    from trilemma.ask.checking import checked

    if card is None:
        raise InputError(
            f"`gpu` is missing: which cards {shorten(' '.join(words), most=60)} runs on, such as `gpu` h100-sxm:8"
        )
    return expectation_of(checked(words, card, options), said, tuple(words))


def expectation_of(answer: Estimate, said: str, words: tuple[str, ...]) -> Expectation:
    """An answer as what is expected of a run."""
    from trilemma.diagnosis.expectation import Expectation

    return Expectation(answer=answer, said=said, price=_priced, command=words)


def _priced(question: Question[Any, Any]) -> Estimate:
    """A second question answered, with remedies where it does not fit."""
    from trilemma.plans import Plan

    if isinstance(question.plan, Plan):
        from trilemma.ask.serving import judged

        return judged(question)
    from trilemma.ask.training import judged as judged_training

    return judged_training(question)
