"""Training frameworks: what one of their commands says, and which package reads and writes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from trilemma.data.files import read_data
from trilemma.errors import Caution, InputError, nearest, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCommand:
    """A training command, read: the model by name (or described by its own flags), plan, workload, what was not understood.

    ``gpus`` is what the launcher states, else what ``plan`` was given; ``gpus_per_node`` is None where nothing says it.
    """

    framework: str
    model: str
    plan: TrainingPlan
    workload: TrainingWorkload
    gpus: int
    gpus_per_node: int | None = None
    architecture: Model | None = None
    unknown_flags: tuple[str, ...] = ()
    cautions: tuple[Caution, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


#: ``read(words, gpus=N or None) -> TrainingCommand``; raises `InputError` naming flag, value and remedy.
Reader = Callable[..., TrainingCommand]
#: framework → module that offers ``read``.
_READERS = {
    "megatron": "trilemma.engines.megatron.read",
    "torchtitan": "trilemma.engines.torchtitan.read",
    "deepspeed": "trilemma.engines.transformers.read",
    "accelerate": "trilemma.engines.transformers.read",
    "transformers": "trilemma.engines.transformers.read",
    "axolotl": "trilemma.engines.axolotl.read",
}


def trainable() -> tuple[str, ...]:
    """The names of the frameworks whose training commands are read."""
    return tuple(_READERS)


def read_training(framework: str, words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a training command; ``gpus`` is the number at hand where the launcher does not say. Raises `InputError`."""
    reader = cast("Reader", importlib.import_module(_READERS[framework]).read)
    return reader(list(words), gpus=gpus)


def check_training_vendor(accelerator: Accelerator) -> None:
    """Raise `InputError` where no framework read here trains on cards of this maker."""
    vendors = read_data("training_frameworks.toml")["vendors"]
    if accelerator.vendor not in vendors:
        raise InputError(
            f"no training framework read here runs on {accelerator.name}; use a card of {', '.join(vendors)}"
        )


@cache
def framework_facts(name: str) -> Mapping[str, Any]:
    """The data file ``engines/{name}.toml``: known flags or keys with their source."""
    return read_data(f"engines/{name}.toml")


def unknown_caution(unknown: Iterable[str], known: Iterable[str], *, where: str) -> tuple[Caution, ...]:
    """One caution that names what is in no list of the framework, with the nearest known names; empty where nothing is."""
    names = list(dict.fromkeys(unknown))
    if not names:
        return ()
    candidates = list(known)
    shown = []
    for name in names[:8]:
        near = nearest(name, candidates, most=1)
        shown.append(shorten(name, most=60) + (f" (did you mean {near[0]}?)" if near else ""))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (Caution(code="unknown-flag", message=f"{where} does not know {', '.join(shown)}{more}; not counted"),)


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
