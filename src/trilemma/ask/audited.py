"""The efficiency checklist over a plan and whatever is given of its run, as an answer that shows itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trilemma.ask.answers import Shown
from trilemma.ask.options import CHECK, settled
from trilemma.auditing.checklist import Audit, Known, audited
from trilemma.auditing.saving import saving_of
from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Reading
from trilemma.diagnosis.judging import judge_readings
from trilemma.diagnosis.reading import read, read_bytes
from trilemma.diagnosis.sources import files_of
from trilemma.errors import InputError, shorten
from trilemma.estimate.estimate import Estimate
from trilemma.hardware.network import parse_network
from trilemma.outside_files import opened

_MOST_GATE_BYTES = 1 << 20
#: Kinds of files that hold no record of a run (a JSON document may be a plan or a gate).
_SAY_NOTHING = frozenset({"empty", "json"})


def audit(
    paths: str | Path | Sequence[str | Path] = (),
    command: str | Sequence[str] = (),
    gpu: Any = None,
    *,
    answer: Estimate | None = None,
    tokens_per_s: float | None = None,
    loader: float | None = None,
    checkpoint_minutes: float | None = None,
    checkpoint_async: bool | None = None,
    storage: float | None = None,
    **options: Any,
) -> Audited:
    """The checklist worked through with a plan (``command`` on ``gpu``, an ``answer`` of `fit`, `train` or `check`, or a file
    with what these printed as JSON) and files of its run (logs, nccl-tests, outputs of a machine's tools, documents of
    ``precision gate``).

    ``tokens_per_s`` is measured over all GPUs, ``loader`` samples a second of the loader alone, ``storage`` bytes a second
    that one GPU has of the storage; ``options`` are those of `check`.
    """
    asked = settled(CHECK, options)
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    readings = [read(name) for name in files_of(names)] if names else []
    gates = [gate for one in readings if (gate := _gate(one)) is not None]
    expectation = _expectation(command, gpu, answer or _saved(readings, command), asked)
    if not readings and expectation is None:
        raise InputError("nothing to audit; name a saved plan, files of the run, or a command behind -- with `gpu`")
    _check_stated(loader=loader, checkpoint_minutes=checkpoint_minutes, storage=storage)
    if expectation is None and not gates and all(one.unreadable or one.kind in _SAY_NOTHING for one in readings):
        first = readings[0]
        why = first.why or ("it is empty" if first.kind == "empty" else "no plan, and no document of a gate")
        raise InputError(
            f"nothing to audit in {shorten(first.file)} ({why}); name a saved plan, files of the run,"
            " or a command behind -- with `gpu`"
        )
    plan = None if expectation is None else expectation.answer
    if tokens_per_s is not None:
        readings.append(_measured(tokens_per_s, plan))
    network = None if asked.network is None else parse_network(asked.network)
    expect = None if expectation is None else _of_all(expectation)
    diagnosis = judge_readings(readings, expect=expect, network_bytes_per_s=network)
    told = saving_of(() if expectation is None else expectation.command)
    saving = replace(
        told,
        interval_s=None if checkpoint_minutes is None else checkpoint_minutes * 60.0,
        asynchronous=told.asynchronous if checkpoint_async is None else checkpoint_async,
        storage_bytes_per_s=storage,
    )
    known = Known(answer=plan, diagnosis=diagnosis, gates=gates, loader_samples_per_s=loader, saving=saving)
    return Audited.of(audited(known))


def _check_stated(**rates: float | None) -> None:
    for name, value in rates.items():
        if value is not None and not 0 < value < 1e18:
            raise InputError(f"`{name}` {value:g} is out of range; give a number above 0")


def _expectation(command: str | Sequence[str], gpu: Any, answer: Estimate | None, asked: Any) -> Expectation | None:
    from trilemma.ask.checking import checked, words_of
    from trilemma.ask.expecting import expectation_of
    from trilemma.ask.questions import named_cards

    words = words_of(command)
    if answer is not None:
        if words:
            raise InputError("a command and an answer are two plans; give one")
        return expectation_of(answer, "the answer given", ())
    if not words:
        return None
    return expectation_of(checked(words, named_cards(gpu), asked), "the command given", tuple(words))


def _saved(readings: Sequence[Reading], command: str | Sequence[str]) -> Estimate | None:
    """The plan that a document among the files holds: what fit, check or plan printed with --json."""
    from trilemma.ask.plan_documents import answer_of, is_plan, read_document

    named = [one.file for one in readings if one.kind == "json" and is_plan(one.facts.get("keys", ()))]
    if not named or command:
        return None
    if len(named) > 1:
        raise InputError(f"{shorten(named[0])} and {shorten(named[1])} are two plans; give one")
    found: Estimate = answer_of(read_document(named[0]), named[0])
    return found


def _of_all(expectation: Expectation) -> Any:
    def expect(case: Case) -> tuple[Mapping[str, Expectation], Sequence[str]]:
        return {one.file: expectation for one in case.readings}, ()

    return expect


def _measured(tokens_per_s: float, plan: Estimate | None) -> Reading:
    """A measured rate as the line of a log that states it."""
    if plan is None:
        raise InputError("`tokens_per_s` is measured against a plan; give its command behind --, and `gpu`")
    if not 0 < tokens_per_s < 1e15:
        raise InputError(f"`tokens_per_s` {tokens_per_s:g} is out of range; give tokens a second over all GPUs")
    rate = tokens_per_s / plan.question.cluster.gpus
    line = f"step: 1  loss: 1.0  tps: {rate:.6f}\n"
    return read_bytes("--tokens-per-s", (line * 3).encode())


def _gate(reading: Reading) -> Mapping[str, Any] | None:
    """A document of ``trilemma precision gate --json`` among the files."""
    if reading.kind != "json" or "outcome" not in reading.facts.get("keys", ()) or reading.file == "-":
        return None
    try:
        with opened(reading.file) as file:
            found = json.loads(file.read(_MOST_GATE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    is_gate = isinstance(found, dict) and str(found.get("schema", "")).startswith("trilemma/gate@")
    return found if is_gate else None


class Audited(Shown, Audit):
    """The checklist worked through."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether no item failed."""
        return self.passed

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.auditing import render_audit

        return render_audit(self, explain=explain, width=width)
