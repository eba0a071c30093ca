"""What one version of Ollama does: defaults and rules read from ``data/engines/ollama.toml``, nothing computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trilemma.engines.facts import FactFile, Facts

#: Rungs of a ladder: (from which on, what then), the highest first.
Ladder = tuple[tuple[float, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OllamaFacts(Facts):
    """The facts in force for one version; ``known`` is False for one newer than all recorded or not given.

    ``context`` and ``batch`` go by GiB of all cards and by cells of the cache; ``build`` is the llama.cpp that runs.
    """

    context: Ladder
    slots: tuple[int, ...]
    places_by: Literal["estimate", "trial", "server"]
    fuses_attention: tuple[str, ...]
    batch: Ladder
    build: str
    windows: tuple[str, ...]
    alone: tuple[str, ...]


def _shaped(values: dict[str, Any]) -> dict[str, Any]:
    ladders = {name: tuple((float(least), int(then)) for least, then in values[name]) for name in ("context", "batch")}
    plain = {name: tuple(values[name]) for name in ("slots", "fuses_attention", "windows", "alone")}
    return {**values, **ladders, **plain}


def rung(ladder: Ladder, value: float) -> int:
    """What ``ladder`` says at ``value``."""
    return next((then for least, then in ladder if value >= least), ladder[-1][1])


FACTS = FactFile("ollama.toml", "Ollama", OllamaFacts, shaped=_shaped)
for_version = FACTS.for_version
