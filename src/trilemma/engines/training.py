"""Training frameworks: what one of their commands says, and which package reads and writes it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, cast

from trilemma.data.files import read_data
from trilemma.errors import InputError, PlanWarning, nearest, shorten
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import every
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCommand:
    """A training command, read: the model by name (or described by its own flags), plan, workload, what was not understood.

    ``gpus`` is what the launcher states, else what ``plan`` was given; ``gpus_per_node`` is None where nothing says it.
    ``generated``: tokens of an answer, at most, that the model generates in each round of reinforcement.
    """

    framework: str
    model: str
    plan: TrainingPlan
    workload: TrainingWorkload
    gpus: int
    gpus_per_node: int | None = None
    architecture: Model | None = None
    unknown_flags: tuple[str, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    generated: int | None = None


#: ``read(words, gpus=N or None) -> TrainingCommand``; raises `InputError` naming flag, value and remedy.
CommandReader = Callable[..., TrainingCommand]
#: Frameworks that start a script of any trainer.
_STARTERS = ("deepspeed", "accelerate", "transformers")


def trainable() -> tuple[str, ...]:
    """The names of the frameworks whose training commands are read."""
    return tuple(_readers())


def read_training(framework: str, words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a training command; ``gpus`` is the number at hand where the launcher does not say. Raises `InputError`."""
    owner = owner_of(words) if framework in _STARTERS else framework
    reader = cast(
        "CommandReader", importlib.import_module(f"trilemma.engines.{_readers()[owner or framework]}.read").read
    )
    return reader(list(words), gpus=gpus)


def owner_of(words: Sequence[str]) -> str | None:
    """The framework whose command stands anywhere in ``words``; None where none does."""
    readers = _readers()
    flags = {word.partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    for row in training_programs():
        named = any(starts_program(words, at, one) for one in row.get("words", ()) for at in range(len(words)))
        flagged = any(flag.replace("-", "_") in flags for flag in row.get("flags", ()))
        script = row.get("script", "")
        if row["framework"] in readers and (
            named or (flagged and any(word == script or word.endswith(f"/{script}") for word in words))
            or (flagged and not script)
        ):  # fmt: skip
            return str(row["framework"])
    return "unsloth" if _calls_unsloth(words) else None


def _calls_unsloth(words: Sequence[str]) -> bool:
    """Whether a script that is here, and that no flag tells, imports Unsloth."""
    script = next((Path(word) for word in words if word.endswith(".py") and not word.startswith("-")), None)
    try:
        if script is None or not script.is_file():
            return False
        with script.open("rb") as file:
            return re.search(rb"^\s{0,8}(from|import) unsloth\b", file.read(2**16), re.MULTILINE) is not None
    except OSError:
        return False


def starts_program(words: Sequence[str], at: int, program: Sequence[str]) -> bool:
    """Whether ``program`` stands in ``words`` at ``at``: consecutive words, the first compared by its file name, or by the end of
    its path where that is named; ``*.yaml`` is any word of that ending."""
    here = words[at : at + len(program)]
    if len(here) < len(program):
        return False
    path = PurePosixPath(here[0])
    named = "/".join(path.parts[-2:]) if "/" in program[0] else path.name
    return named == program[0] and all(
        word.endswith(own[1:]) if own.startswith("*.") else word == own
        for word, own in zip(here[1:], program[1:], strict=True)
    )


@cache
def _readers() -> Mapping[str, str]:
    """Framework → package that reads its commands; trainers that run others come after these."""
    own = {name: one.reader for name, one in every().items() if one.reader is not None}
    return {**own, **framework_facts("trainers")["readers"]}


@cache
def training_programs() -> tuple[Mapping[str, Any], ...]:
    """How commands are recognised, from ``engines/trainers.toml`` and each framework's own file: the first row found counts."""
    rows = framework_facts("trainers")["program"]
    flagged = next(at for at, row in enumerate(rows) if "flags" in row)
    own = ({"framework": name, "words": one.programs} for name, one in every().items() if one.programs)
    return (*rows[:flagged], *own, *rows[flagged:])


@cache
def framework_facts(name: str) -> Mapping[str, Any]:
    """The data file ``engines/{name}.toml``: known flags or keys with their source."""
    return read_data(f"engines/{name}.toml")


def unknown_warning(unknown: Iterable[str], known: Iterable[str], *, where: str) -> tuple[PlanWarning, ...]:
    """One warning that names what is in no list of the framework, with the nearest known names; empty where nothing is."""
    names = list(dict.fromkeys(unknown))
    if not names:
        return ()
    candidates = list(known)
    shown = []
    for name in names[:8]:
        near = nearest(name, candidates, most=1)
        shown.append(shorten(name, most=60) + (f" (did you mean {near[0]}?)" if near else ""))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (PlanWarning(code="unknown-flag", message=f"{where} does not know {', '.join(shown)}{more}; not counted"),)


def replicas(gpus: int, *, given: Mapping[str, int], minimum: str = "") -> int:
    """Data-parallel ranks left by the other degrees of ``given`` (flag → degree). Raises `InputError` with the product."""
    taken = 1
    for degree in given.values():
        taken *= degree
    if gpus % taken:
        product = " x ".join(f"{flag} {degree}" for flag, degree in given.items())
        raise InputError(
            f"{product} is {taken}, which does not divide the {gpus} GPUs; use degrees whose product divides {gpus}{minimum}"
        )
    return gpus // taken


def steps_per_batch(*, global_batch: int, micro_batch: int, dp: int, flag: str) -> None:
    """Raise `InputError` unless whole micro-batches of all replicas make the global batch."""
    if global_batch % (micro_batch * dp):
        lower = max(global_batch // (micro_batch * dp), 1) * micro_batch * dp
        raise InputError(
            f"{flag} {global_batch} is not a multiple of micro-batch {micro_batch} x data parallel {dp} = {micro_batch * dp};"
            f" use {lower} or another multiple"
        )
