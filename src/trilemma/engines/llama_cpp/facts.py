"""What one build of llama.cpp does: defaults and rules read from ``data/engines/llama_cpp.toml``, nothing computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.engines.facts import FactFile, Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaCppFacts(Facts):
    """The facts in force for one build; ``known`` is False for one newer than all recorded or not given."""

    context: int
    slots: Mapping[str, Any]
    layers_on_card: str
    fits_itself: bool
    fit_margin_mib: int
    fit_least_context: int
    micro_batch: int
    offload_rows: int
    batch: int
    flash_attention: bool
    context_padding: int
    windows_kept: bool
    windows_unused: tuple[str, ...]
    draft_caches_every_layer: tuple[str, ...]


def _shaped(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, **{name: tuple(values[name]) for name in ("windows_unused", "draft_caches_every_layer")}}


FACTS = FactFile("llama_cpp.toml", "llama.cpp", LlamaCppFacts, shaped=_shaped)
for_version = FACTS.for_version
