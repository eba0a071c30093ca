"""One GPU as any tool reports it: the same keys whoever says it, None where nothing was said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trilemma.diagnosis.findings import Case, Event, Part
from trilemma.errors import InputError

if TYPE_CHECKING:
    from trilemma.hardware.accelerator import Accelerator

#: Kinds of records that name GPUs.
KINDS = (
    "nvidia-smi", "nvidia-smi-csv", "nvidia-smi-q", "nvidia-smi-xml", "gpu-list", "rocm-smi", "rocm-smi-json", "npu-smi",
    "host-state",
)  # fmt: skip
#: More are not kept of one file.
MOST_GPUS = 4096
#: What a GPU may say of itself; sizes in MiB, power in watts, temperatures in °C.
_KEYS = (
    "gpu", "name", "memory_total_mib", "memory_free_mib", "uncorrected_errors", "ecc", "remap_pending", "remap_failed",
    "recovery_action", "slowed_by", "link_width", "link_width_most", "link_generation", "link_generation_most",
    "temperature_c", "power_limit_w", "power_default_w", "power_most_w", "clock_mhz", "clock_most_mhz", "clock_set_mhz",
    "mig", "persistence", "driver", "partition", "busy", "uuid",
)  # fmt: skip
_OFTEN_FALSE = ("remap_pending", "remap_failed", "mig")


def gpu_event(line: int | None = None, **values: Any) -> Event:
    """An event named "gpu" with every key of this house."""
    unknown = set(values) - set(_KEYS)
    assert not unknown, unknown
    told: dict[str, Any] = dict.fromkeys(_KEYS)
    told |= {
        "slowed_by": [],
        "uncorrected_errors": 0,
        "recovery_action": "",
        "name": "",
        **dict.fromkeys(_OFTEN_FALSE, False),
    }
    return Event(
        name="gpu", line=line, values=told | {key: value for key, value in values.items() if value is not None}
    )


def number_of(text: str) -> float | None:
    """The number that a text starts with: ``700.00 W`` is 700; None where it starts with none."""
    found = re.match(r"\s*(\d{1,15}(?:\.\d{0,9})?)", text)
    return float(found[1]) if found else None


def facts_of(gpus: list[Event], **more: Any) -> dict[str, Any]:
    """The facts that every list of GPUs states: how many, which, how large."""
    told = {key: value for key, value in more.items() if value}
    return {
        "gpus": len(gpus),
        **told,
        "names": sorted({gpu.values["name"] for gpu in gpus if gpu.values["name"]})[:8],
        "memory_total_mib": sorted({gpu.values["memory_total_mib"] for gpu in gpus if gpu.values["memory_total_mib"]})[
            :8
        ],
    }


def gpus_in(case: Case) -> Iterator[tuple[str, Part, Event]]:
    """(file, part, GPU) of everything read, whichever tool reports it."""
    for reading in case.readings:
        for part in reading.parts:
            for event in part.events:
                if event.name == "gpu" and "slowed_by" in event.values:
                    yield reading.file, part, event


def part_of(gpu: Event) -> Accelerator | None:
    """What the catalogue has of a GPU by its name and memory; None where it has none."""
    size = gpu.values["memory_total_mib"]
    if not gpu.values["name"]:
        return None
    return _part(gpu.values["name"], None if size is None else size / 1024)


@lru_cache(maxsize=256)
def _part(name: str, total_gib: float | None) -> Accelerator | None:
    from trilemma.hardware.catalogue import find_measured

    try:
        return find_measured(name, total_gib)[0]
    except InputError:
        return None


def capability_of(gpu: Event) -> float | None:
    """Its compute capability, where the catalogue has the card and the maker counts any."""
    part = part_of(gpu)
    return None if part is None else part.compute_capability
