"""What one version of MLX-LM does; read from ``data/engines/mlx_lm.toml``, nothing computed."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.engines.facts import FactFile, Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class MlxFacts(Facts):
    """The facts in force for one version; ``known`` is False for one newer than all recorded or not given."""

    sequences: int
    prompt_step: int
    cache_step: int
    quantised_from: int


FACTS = FactFile("mlx_lm.toml", "MLX-LM", MlxFacts)
for_version = FACTS.for_version
