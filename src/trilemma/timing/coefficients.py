"""How much of a datasheet kernels reach: efficiencies and fixed times, read from a data file and keyed by the card."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trilemma.hardware.accelerator import Accelerator


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """Everything that timing needs beside datasheet figures, for one card.

    ``matmul`` is the share of the dense peak by compute format, ``stream`` the share of bandwidth by weight bits (16, 8, 4).
    Times ending in ``_s`` are seconds. ``known_card`` is False where no kernel of this kind of card was measured.
    """

    card: str
    known_card: bool
    source: str
    matmul: Mapping[str, float]
    stream: Mapping[int, float]
    cache_stream: float
    prefill_attention: float
    overlap_power: float
    kernel_s: float
    attention_kernel_s: float
    experts_kernel_s: float
    experts_share_of_matmul: float
    experts_tile_rows_small: int
    experts_tile_rows_large: int
    experts_tile_switch_tokens: int
    expert_imbalance: float
    link_share: float
    pcie_share: float
    network_share: float
    one_shot_latency_s: float
    ring_latency_s: float
    pcie_latency_s: float
    network_latency_s: float
    step_s: float
    sequence_s: float
    request_s: float
    queue_share: float

    def matmul_share(self, compute_format: str) -> float:
        """Share of the dense peak of ``compute_format`` that large matrix products reach."""
        return self.matmul.get(compute_format, self.matmul["bf16"])

    def stream_share(self, bits: float) -> float:
        """Share of bandwidth at which weights of ``bits`` per element are read."""
        return self.stream[16 if bits > 8.5 else 8 if bits > 6.5 else 4]


def coefficients_for(accelerator: Accelerator) -> Coefficients:
    """The coefficients of ``accelerator``'s kind of card; cards never measured share the row "any other card"."""
    return _coefficients(accelerator.vendor.lower(), accelerator.compute_capability)


@cache
def _coefficients(vendor: str, capability: float | None) -> Coefficients:
    data = spec_sheet()
    cards = data["card"]
    known = "nvidia" in vendor and any(capability in card["compute_capabilities"] for card in cards)
    chosen = (
        next(card for card in cards if capability in card["compute_capabilities"])
        if known
        else next(card for card in cards if not card["compute_capabilities"])
    )
    shared: dict[str, Any] = {}
    for section in ("kernels", "collectives", "host"):
        shared |= {key: value for key, value in data[section].items() if key != "source"}
    return Coefficients(
        card=chosen["name"],
        known_card=known,
        source=data["sources"][chosen["source"]],
        matmul=chosen["matmul"],
        stream={int(key.removeprefix("bits")): share for key, share in chosen["stream"].items()},
        cache_stream=chosen["cache_stream"],
        prefill_attention=chosen["prefill_attention"],
        **shared,
    )


@cache
def spec_sheet() -> Mapping[str, Any]:
    """The data file of spec-sheet timing, as read."""
    text = resources.files("trilemma.data").joinpath("coefficients/spec_sheet.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
