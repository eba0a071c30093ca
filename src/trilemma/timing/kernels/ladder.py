"""Which coefficients a kernel gets: measured on this card where they are, else the next rung down, each wider than the last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trilemma.hardware.accelerator import Accelerator
from trilemma.timing.kernels.fitted import KernelCoefficients, check_values, kernel_format, on_card
from trilemma.timing.kernels.formulas import COLLECTIVES, parameters_of
from trilemma.timing.kernels.spec_sheet import spec_sheet_kernel

MEASURED, OTHER_ENGINE, SAME_ARCHITECTURE, OTHER_FORMAT, SPEC_SHEET = (
    "measured", "other engine", "same architecture", "other format", "spec sheet",
)  # fmt: skip
RUNGS = (MEASURED, OTHER_ENGINE, SAME_ARCHITECTURE, OTHER_FORMAT, SPEC_SHEET)
#: Other names of engines whose kernels were measured.
_ENGINES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "tensorrt_llm": "trtllm"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """How well a kernel is known: the step of the ladder, factors on its seconds that bound 90 % of cases, and who says so."""

    name: str
    low: float
    high: float
    source: str

    def __str__(self) -> str:
        return f"{self.name}: {self.source}"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPart:
    """Which part of a kernel is asked about: width of heads, layers with a window or without, an implementation by name."""

    head_dim: int | None = None
    windowed: bool = False
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """One fit of a card's data file, for a part of the rows where ``source``, ``head_dim`` or ``windowed`` are given."""

    card: str
    kernel: str
    engine: str
    version: str
    dtype: str
    rows: int
    low: float
    high: float
    values: Mapping[str, float]
    source: str
    head_dim: int | None
    windowed: bool | None

    def is_for(self, part: KernelPart) -> bool:
        return (
            (self.head_dim is None or self.head_dim == part.head_dim)
            and (self.windowed is None or self.windowed == part.windowed)
            and (not self.source or not part.source or self.source == part.source)
        )

    @property
    def fineness(self) -> tuple[bool, bool, int]:
        """Finer fits first, among equals the implementation that was measured most: the engine's usual one."""
        return self.head_dim is not None, bool(self.source), self.rows


def kernel_coefficients(
    accelerator: Accelerator,
    engine: str,
    kernel: str,
    dtype: str = "bf16",
    *,
    head_dim: int | None = None,
    windowed: bool = False,
    source: str = "",
) -> tuple[KernelCoefficients, Rung]:
    """Coefficients of ``kernel`` in ``engine`` on ``accelerator``, and the rung of the ladder that they stand on.

    1. measured on this card with this engine; 2. on this card with another engine; 3. on a card of the same compute
    capability (else generation), its shares under this card's figures; 4. as 1 to 3 for the nearest number format, with
    this format's bytes and units; 5. the spec sheet. Collectives depend on the fabric: rung 3 wants the same kind of link.

    Attention differs by ``head_dim`` and by whether layers are ``windowed``; where that width was not measured, numbers over
    all widths stand for it. ``source`` asks for one implementation; else the one measured most stands for the engine.
    ``engine`` of a collective may be "nccl". Raises `UnknownName` for an unknown kernel or format.
    """
    parameters_of(kernel)
    wanted = table_engine(engine)
    part = KernelPart(head_dim=head_dim, windowed=windowed, source=source)
    for rung, entry in _climb(accelerator, wanted, kernel, dtype, part):
        found = on_card(accelerator, kernel=kernel, engine=entry.engine, dtype=dtype, values=entry.values)
        return found, _rung(rung, entry)
    low, high = _spread(SPEC_SHEET, kernel)
    sheet = spec_sheet_kernel(accelerator, kernel, dtype)
    return sheet, Rung(
        name=SPEC_SHEET, low=low, high=high, source=f"datasheet of {accelerator.name}, no kernel measured"
    )


def table_engine(engine: str) -> str:
    """What kernel tables call ``engine``."""
    return _ENGINES.get(engine.lower(), engine.lower())


def measured_cards() -> tuple[str, ...]:
    """Ids of the accelerators whose kernels were measured."""
    return tuple(_ladder()["cards"])


def _climb(
    accelerator: Accelerator, engine: str, kernel: str, dtype: str, part: KernelPart
) -> Iterator[tuple[str, _Entry]]:
    for at, name in enumerate((dtype, *kernel_format(dtype).stand_ins)):
        for rung, entry in _same_format(accelerator, engine, kernel, name, part):
            yield (rung if at == 0 else OTHER_FORMAT), entry


def _same_format(
    accelerator: Accelerator, engine: str, kernel: str, dtype: str, part: KernelPart
) -> Iterator[tuple[str, _Entry]]:
    here = _entries(accelerator.id, kernel, dtype, part)
    yield from ((MEASURED, entry) for entry in here if entry.engine == engine)
    yield from ((OTHER_ENGINE, entry) for entry in here if entry.engine != engine)
    for card in _relatives(accelerator, kernel):
        there = _entries(card, kernel, dtype, part)
        for entry in sorted(there, key=lambda entry: entry.engine != engine):
            yield SAME_ARCHITECTURE, entry


def _relatives(accelerator: Accelerator, kernel: str) -> list[str]:
    """Measured cards of the same generation, nearest first: same compute capability, then the nearest bandwidth."""
    capability = accelerator.compute_capability
    if capability is None or accelerator.vendor.lower() != "nvidia":
        return []
    link = accelerator.link.name if accelerator.link is not None else "pcie"
    found = []
    for card, facts in _ladder()["cards"].items():
        same_kind = facts["link"] == link if kernel in COLLECTIVES else True
        if card != accelerator.id and same_kind and int(facts["compute_capability"]) == int(capability):
            bandwidth = accelerator.bandwidth_bytes_per_s.value
            distance = max(facts["bandwidth_bytes_per_s"], bandwidth) / min(facts["bandwidth_bytes_per_s"], bandwidth)
            found.append((facts["compute_capability"] != capability, distance, card))
    return [card for _, _, card in sorted(found)]


def _rung(name: str, entry: _Entry) -> Rung:
    low, high = (entry.low, entry.high) if name == MEASURED else _spread(name, entry.kernel)
    return Rung(
        name=name,
        low=low,
        high=high,
        source=f"{_named(entry)} of {entry.engine} {entry.version} on {entry.card}, {entry.rows:,} rows",
    )


def _named(entry: _Entry) -> str:
    width = (
        "" if entry.head_dim is None else f" at head width {entry.head_dim}{' with a window' if entry.windowed else ''}"
    )
    return f"{entry.kernel} {entry.dtype}{width}{f' ({entry.source})' if entry.source else ''}"


def _spread(rung: str, kernel: str) -> tuple[float, float]:
    low, high = _ladder()["spread"][rung][kernel]
    return low, high


def _entries(card: str, kernel: str, dtype: str, part: KernelPart) -> list[_Entry]:
    """The fits of one card that are for ``part``, finest first."""
    if card not in _ladder()["cards"]:
        return []
    fits = [entry for entry in _card_entries(card).get((kernel, dtype), ()) if entry.is_for(part)]
    return sorted(fits, key=lambda entry: entry.fineness, reverse=True)


@cache
def _card_entries(card: str) -> Mapping[tuple[str, str], Sequence[_Entry]]:
    found: dict[tuple[str, str], list[_Entry]] = {}
    for row in _read(f"{card}.json")["kernels"]:
        check_values(row["kernel"], parameters_of(row["kernel"]), row["values"])
        entry = _Entry(
            card=card, kernel=row["kernel"], engine=row["engine"], version=row["version"], dtype=row["dtype"],
            rows=row["rows"], low=row["held_out"]["low"], high=row["held_out"]["high"], values=row["values"],
            source=row.get("source", ""), head_dim=row.get("head_dim"), windowed=row.get("windowed"),
        )  # fmt: skip
        found.setdefault((entry.kernel, entry.dtype), []).append(entry)
    return found


@cache
def _ladder() -> Mapping[str, Any]:
    return _read("ladder.json")


def _read(name: str) -> Mapping[str, Any]:
    text = resources.files("trilemma.data").joinpath(f"coefficients/kernels/{name}").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document
