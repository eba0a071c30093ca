"""What one version of vLLM does: defaults and rules read from ``data/engines/vllm.toml``, nothing computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trilemma.engines.facts import FactFile, Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDefaults:
    """Default sequences and batched tokens: ``large`` from ``large_card_bytes`` on (save cards ``not_large``, and of those of
    ``only_large`` alone where any are named), ``largest`` from ``largest_card_bytes`` on, else ``small``."""

    large_card_bytes: float
    large: tuple[int, int]
    small: tuple[int, int]
    not_large: tuple[str, ...] = ()
    only_large: tuple[str, ...] = ()
    largest_card_bytes: float = math.inf
    largest: tuple[int, int] = (0, 0)

    def of_card(self, capacity_bytes: float, card: str) -> tuple[int, int]:
        """(sequences, tokens) on a card of ``capacity_bytes`` whose id is ``card``."""
        if capacity_bytes >= self.largest_card_bytes:
            return self.largest
        card = card.lower()
        named = not any(word in card for word in self.not_large)
        if self.only_large:
            named = any(word in card for word in self.only_large)
        return self.large if capacity_bytes >= self.large_card_bytes and named else self.small


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSizes:
    """CUDA graphs captured: batches up to ``min(most, per_sequence · sequences)``, in ``kinds`` modes."""

    most: int
    per_sequence: int
    kinds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmFacts(Facts):
    """The facts in force for one version; each field's source stands in the data file and in ``sources``.

    ``known`` is False for a version newer than every recorded one or not given: its intervals are widened.
    """

    memory_fraction: float
    graphs_in_budget: bool
    second_runner_skips_graphs: bool
    chunked_prefill: bool
    long_prompts_chunked: Mapping[str, int]
    batch_sizes_by_card: BatchDefaults
    block_size: int
    mla_block_size: int
    compressed_block_size: int
    state_block_alignment: int
    hybrid_groups: bool
    chunked_attention_groups: bool
    group_ratio: float
    tokens_printed: Literal["blocks", "concurrency"]
    in_flight_batches: int
    packed_compressed: bool
    state_prefix_caching: bool
    state_block_check: Literal["none", "captured", "sequences"]
    graph_sizes: GraphSizes
    vendors: Sequence[str]
    budget_checked_at_start: bool
    mla_weight_copies: bool
    latents_as_heads: Mapping[str, int]
    older_engine: str
    older_engine_for: tuple[str, ...]
    captures_for_every_stage: bool
    flashinfer: Mapping[str, float]
    profiles_whole_prompts: bool
    vocab_padding: int
    quantizes_while_loading: Mapping[str, str]
    quantizes_layer_by_layer: bool
    linear_rope_factors: Mapping[str, int]
    expert_padding: Mapping[str, tuple[int, int]]
    adapters_on_experts: bool
    whole_model_check: bool
    states_at_start: Mapping[str, int]


def _shaped(values: dict[str, Any]) -> dict[str, Any]:
    batches = values["batch_sizes_by_card"]
    return {
        **values,
        "batch_sizes_by_card": BatchDefaults(
            large_card_bytes=batches["large_card_bytes"],
            large=tuple(batches["large"]),
            small=tuple(batches["small"]),
            not_large=tuple(batches.get("not_large", ())),
            only_large=tuple(batches.get("only_large", ())),
            largest_card_bytes=batches.get("largest_card_bytes", math.inf),
            largest=tuple(batches.get("largest", (0, 0))),
        ),
        "older_engine_for": tuple(values["older_engine_for"]),
        "graph_sizes": GraphSizes(**values["graph_sizes"]),
        "expert_padding": {name: (pair[0], pair[1]) for name, pair in values["expert_padding"].items()},
    }


FACTS = FactFile("vllm.toml", "vLLM", VllmFacts, shaped=_shaped)
for_version = FACTS.for_version
