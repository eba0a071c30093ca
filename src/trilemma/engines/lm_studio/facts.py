"""What one version of LM Studio does; read from ``data/engines/lm_studio.toml``, nothing computed."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.engines.facts import FactFile, Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class LmStudioFacts(Facts):
    """The facts in force for one version; ``build`` is the llama.cpp that runs."""

    context: int
    slots: int
    build: str


FACTS = FactFile("lm_studio.toml", "LM Studio", LmStudioFacts)
for_version = FACTS.for_version
