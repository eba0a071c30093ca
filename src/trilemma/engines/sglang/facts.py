"""What one version of SGLang does: defaults and rules read from ``data/engines/sglang.toml``, nothing computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.engines.facts import FactFile, Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangFacts(Facts):
    """The facts in force for one version; each field's source stands in ``sources`` and the data file.

    ``known`` is False for a version newer than every recorded one or not given: intervals are widened.
    """

    card_classes: Mapping[str, Any]
    reserve: Mapping[str, Any]
    sized_after_capture_mib: float
    encoder_share: float
    sparse_counted: Mapping[str, bool]
    sparse_raw_from: float
    sparse_16_bit_below: float
    window_pool_ratio: float
    window_pool_families: tuple[str, ...]
    whole_embeddings: tuple[str, ...]
    cut_towers: tuple[str, ...]
    rope_element_bytes: int
    state_ratio: float
    states_per_request: int
    page_size: int
    sparse_page_size: int
    requests: Mapping[str, int]
    quantizes_while_loading: Mapping[str, str]
    vocab_padding: int
    adapters_on_experts: bool
    compressed_pool: Mapping[str, Any]
    expert_scales_kept: Mapping[str, Any]


def _shaped(values: dict[str, Any]) -> dict[str, Any]:
    lists = ("window_pool_families", "whole_embeddings", "cut_towers")
    return {**values, **{name: tuple(values[name]) for name in lists}}


FACTS = FactFile("sglang.toml", "SGLang", SglangFacts, release_numbers=3, shaped=_shaped)
for_version = FACTS.for_version
