"""A machine by what its tools say: which cards of the catalogue, how many, how much memory, and what could not be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trilemma.diagnosis.findings import Event, Reading
from trilemma.diagnosis.reading import read, read_bytes
from trilemma.diagnosis.sources import files_of
from trilemma.errors import InputError, PlanWarning, UnknownName, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import all_accelerators, find, find_measured
from trilemma.machine import probes
from trilemma.machine.probes import Unseen
from trilemma.quantities import MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One card as its tool names it; ``part`` is what the catalogue has of it, ``why`` why it has none."""

    name: str
    part: Accelerator | None
    why: str = ""
    memory_bytes: float | None = None
    free_bytes: float | None = None
    sliced: bool = False
    warnings: tuple[PlanWarning, ...] = ()

    @property
    def word(self) -> str:
        """The card as ``--gpu`` names it: with its memory where it is sold with several sizes. Raises `InputError`."""
        if self.part is None:
            raise InputError(f"{self.name}: {self.why}; give `gpu` an accelerator file (docs/adding-an-accelerator.md)")
        if self.sliced:
            raise InputError(f"{self.name} is cut into MIG slices; end that (nvidia-smi -mig 0), or name another card")
        return f"{self.part.id}-{self.part.label_gb:g}gb" if self.part.label_options_gb else self.part.id


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenMachine:
    """``readings`` are the outputs it is told by; ``recorded``: files, and not the machine that this runs on."""

    cards: tuple[Card, ...]
    host_memory_bytes: float | None
    driver: str
    readings: tuple[Reading, ...]
    unseen: tuple[Unseen, ...] = ()
    recorded: bool = False

    def kinds(self) -> tuple[tuple[Card, int], ...]:
        """Each kind of card once, with how many there are."""
        counted = Counter((card.name, card.memory_bytes) for card in self.cards)
        first = {(card.name, card.memory_bytes): card for card in reversed(self.cards)}
        return tuple((first[key], number) for key, number in counted.items())

    @property
    def gpu_words(self) -> str:
        """The cards as ``--gpu`` takes them. Raises `InputError` where a card is not in the catalogue, or none was seen."""
        if not self.cards:
            tools = "; ".join(dict.fromkeys(one.why for one in self.unseen))
            raise InputError(
                f"no GPU was seen on this machine ({tools or 'no tool named one'}); name the cards, such as h100-sxm:8"
            )
        words = [f"{card.word}:{number}" for card, number in self.kinds()]
        return "+".join(words)


def this_machine(*, examined: bool = False) -> SeenMachine:
    """The machine under this program; ``examined``: with its state, limits and libraries."""
    outputs, unseen = probes.everything() if examined else probes.cards()
    return machine_of([read_bytes(one.name, one.content) for one in outputs], unseen=unseen)


def recorded_machine(paths: Sequence[str | Path]) -> SeenMachine:
    """A machine by files that hold what its tools printed."""
    found = machine_of([read(name) for name in files_of(paths)], recorded=True)
    if not found.cards and found.host_memory_bytes is None:
        shown = shorten(", ".join(map(str, paths)))
        raise InputError(
            f"{shown} holds nothing that a tool prints of a machine; give outputs of nvidia-smi, rocm-smi, npu-smi or sysctl"
        )
    return found


def machine_of(readings: Sequence[Reading], *, unseen: Sequence[Unseen] = (), recorded: bool = False) -> SeenMachine:
    """Of several tools that name cards the one that says most is believed."""
    gpus, driver, attached = _cards_told(readings)
    memory = next((one.facts["memory_total_bytes"] for one in readings if "memory_total_bytes" in one.facts), None)
    shared_mib = memory / MIB if isinstance(memory, int | float) else None
    cards = tuple(_card(gpu, shared_mib) for gpu in gpus)
    if attached > len(cards) and cards and len({card.name for card in cards}) == 1:
        cards += (cards[0],) * (attached - len(cards))
    return SeenMachine(
        cards=cards,
        host_memory_bytes=float(memory) if isinstance(memory, int | float) else None,
        driver=driver,
        readings=tuple(readings),
        unseen=tuple(unseen),
        recorded=recorded,
    )


def _cards_told(readings: Sequence[Reading]) -> tuple[tuple[Event, ...], str, int]:
    """(GPUs, driver, how many are said to be attached) of the record that tells most of them."""
    best: tuple[tuple[int, float], tuple[Event, ...], int] = ((0, 0.0), (), 0)
    driver = ""
    for reading in readings:
        for part in reading.parts:
            gpus = tuple(event for event in part.events if event.name == "gpu" and "slowed_by" in event.values)
            told = part.facts.get("driver_version")
            driver = driver or (told if isinstance(told, str) else "")
            sizes = sum(gpu.values["memory_total_mib"] is not None for gpu in gpus)
            rank = (len(gpus), sizes + part.weight / 1e6)
            if gpus and rank > best[0]:
                attached = part.facts.get("attached_gpus", 0)
                best = rank, gpus, attached if isinstance(attached, int) else 0
    return best[1], driver, best[2]


def _card(gpu: Event, shared_mib: float | None) -> Card:
    """``shared_mib`` is the memory of the machine, which is a card's own where it shares it (Jetson: nvidia-smi tells none)."""
    size, free = gpu.values["memory_total_mib"], gpu.values["memory_free_mib"]
    part, why, warnings = _part(gpu.values["name"], size)
    if size is None and part is not None and part.unified_memory:
        size = shared_mib
        part, why, warnings = _shared_part(gpu.values["name"], shared_mib)
    return Card(
        name=gpu.values["name"] or "GPU without a name",
        part=part,
        why=why,
        memory_bytes=None if size is None else size * MIB,
        free_bytes=None if free is None else free * MIB,
        sliced=bool(gpu.values["mig"]),
        warnings=warnings,
    )


def _shared_part(name: str, shared_mib: float | None) -> tuple[Accelerator | None, str, tuple[PlanWarning, ...]]:
    """The part by the memory of the machine; without it every part of the name may be meant."""
    try:
        return find(name, memory_gib=None if shared_mib is None else shared_mib / 1024), "", ()
    except InputError as error:
        return None, str(error), ()


def _part(name: str, size_mib: float | None) -> tuple[Accelerator | None, str, tuple[PlanWarning, ...]]:
    """The part of the catalogue that a tool's name and memory mean. Names of older drivers are cut with dots."""
    total = None if size_mib is None else size_mib / 1024
    if name.rstrip().endswith("..."):
        start = name.rstrip(". ").lower()
        near = [
            one for one in all_accelerators()
            if any(word.lower().startswith(start) for word in (f"{one.vendor} {one.name}", one.name, *one.aliases))
        ]  # fmt: skip
        name = near[0].name if len(near) == 1 else name.rstrip(". ")
    try:
        part, warnings = find_measured(name, total)
        if part.unified_memory and total is not None:  # what it is sold with, not what a GPU may take of it
            part, warnings = find_measured(f"{name} {total:.0f}GB")
    except UnknownName:
        return None, "the catalogue has no card of this name", ()
    except InputError as error:
        return None, str(error), ()
    return part, "", warnings
