"""What one version of Transformers does when it serves; read from ``data/engines/transformers_serve.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trilemma.engines.facts import FactFile, Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersFacts(Facts):
    """The facts in force for one version; ``known`` is False for one newer than all recorded or not given."""

    loads_in_float32: bool
    sequences: int
    logits_of_all_tokens: bool
    pool_share: float
    paged_tokens: int
    quantizes_while_loading: Mapping[str, str]


FACTS = FactFile("transformers_serve.toml", "Transformers", TransformersFacts)
for_version = FACTS.for_version
