"""How much of a datasheet kernels reach: efficiencies and fixed times, read from a data file and keyed by the card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.formats.computing import stands_for
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """Everything that timing needs beside datasheet figures, for one card.

    ``matmul`` is the share of the dense peak by compute format, ``stream`` the share of bandwidth by weight bits (16, 8, 4).
    Times ending in ``_s`` are seconds. ``known_card`` is False where no kernel of this kind of card was measured.
    ``experts_stream``, ``prefill_matmul`` and ``prefill_experts`` multiply the shares of decode's plain products;
    ``expanded_matmul`` and ``expanded_stream`` multiply the shares of weights that are expanded to 16 bits inside the product;
    ``interference`` is what a prefill costs the steps it is mixed into over what it takes alone; ``steps_waited`` pass
    before a request that arrives is taken up. Up to ``row_by_row_tokens`` tokens experts are multiplied by
    matrix-vector kernels; ``quantised_in_int8`` and ``sums_in_fp16`` say which units an engine multiplies in. Serving terms
    fitted to one engine scale these numbers (`scaled`).
    """

    card: str
    known_card: bool
    source: str
    matmul: Mapping[str, Numbers]
    stream: Mapping[int, Numbers]
    cache_stream: Numbers
    prefill_attention: Numbers
    expanded_matmul: float
    expanded_stream: float
    overlap_power: float
    kernel_s: Numbers
    attention_kernel_s: Numbers
    experts_kernel_s: Numbers
    experts_share_of_matmul: Numbers
    experts_tile_rows_small: int
    experts_tile_rows_large: int
    experts_tile_switch_tokens: int
    expert_imbalance: Numbers
    link_share: Numbers
    pcie_share: Numbers
    network_share: Numbers
    one_shot_latency_s: Numbers
    ring_latency_s: Numbers
    pcie_latency_s: Numbers
    network_latency_s: Numbers
    network_reduce_latency_s: Numbers
    step_s: Numbers
    sequence_s: Numbers
    request_s: Numbers
    queue_share: Numbers
    queued_request_s: Numbers
    steps_waited: Numbers
    interference: Numbers
    experts_stream: Numbers
    prefill_matmul: Numbers
    prefill_experts: Numbers
    routing_evenness: Numbers
    row_by_row_tokens: float = 0.0
    quantised_in_int8: bool = False
    sums_in_fp16: bool = False

    def matmul_share(self, compute_format: str) -> Any:
        """Share of the dense peak of ``compute_format`` that large matrix products reach."""
        return next(self.matmul[name] for name in (*stands_for(compute_format), "bf16") if name in self.matmul)

    def stream_share(self, bits: float) -> Any:
        """Share of bandwidth at which weights of ``bits`` per element are read."""
        return self.stream[16 if bits > 8.5 else 8 if bits > 6.5 else 4]


#: Term of serving → the coefficients that it scales.
SCALED_BY: Mapping[str, tuple[str, ...]] = {
    "matmul": ("matmul",),
    "stream": ("stream",),
    "cache_stream": ("cache_stream",),
    "experts_matmul": ("experts_share_of_matmul",),
    "experts_stream": ("experts_stream",),
    "prefill_matmul": ("prefill_matmul",),
    "prefill_experts": ("prefill_experts",),
    "prefill_attention": ("prefill_attention",),
    "kernel": ("kernel_s", "attention_kernel_s"),
    "experts_kernel": ("experts_kernel_s",),
    "step": ("step_s",),
    "sequence": ("sequence_s",),
    "latency": (
        "one_shot_latency_s",
        "ring_latency_s",
        "pcie_latency_s",
        "network_latency_s",
        "network_reduce_latency_s",
    ),
    "link": ("link_share", "pcie_share", "network_share"),
    "interference": ("interference",),
    "request": ("request_s",),
    "queue": ("queue_share",),
    "queued_request": ("queued_request_s",),
    "steps_waited": ("steps_waited",),
    "expert_imbalance": ("expert_imbalance",),
    "routing_evenness": ("routing_evenness",),
}


#: Shares of a bandwidth, which nothing exceeds; products may exceed the peak that sums in FP32 where they sum in FP16.
#: Routing is at most even: a token wakes its own experts and no more.
_AT_MOST_ONE = ("cache_stream", "link_share", "pcie_share", "network_share", "routing_evenness")


def scaled(coefficients: Coefficients, factors: Mapping[str, Numbers]) -> Coefficients:
    """``coefficients`` with each term of `SCALED_BY` multiplied by its factor, shares of a bandwidth up to all of it; terms
    without a factor stay."""
    changed: dict[str, Any] = {}
    for term, factor in factors.items():
        for name in SCALED_BY[term]:
            value = getattr(coefficients, name)
            changed[name] = (
                {key: share * factor for key, share in value.items()} if isinstance(value, Mapping) else value * factor
            )
    for name in _AT_MOST_ONE:
        if name in changed:
            changed[name] = np.minimum(changed[name], 1.0)
    return replace(coefficients, **changed)


def headroom(coefficients: Coefficients) -> dict[str, float]:
    """Term → logarithm of the factor at which the last of its shares of a bandwidth reaches all of it."""
    capped = {term: [name for name in names if name in _AT_MOST_ONE] for term, names in SCALED_BY.items()}
    return {
        term: max(-float(np.log(getattr(coefficients, name))) for name in names)
        for term, names in capped.items()
        if names
    }


#: Coefficients that are shares of a datasheet figure, or multiply one.
_SHARES = (
    "cache_stream", "prefill_attention", "experts_share_of_matmul", "experts_stream", "prefill_matmul", "prefill_experts",
    "link_share", "pcie_share", "network_share",
)  # fmt: skip


def at_datasheet(coefficients: Coefficients) -> Coefficients:
    """``coefficients`` of kernels that reach the datasheet and wait for nothing: every share 1, every fixed time 0.

    What is work and no loss stays: padding to tiles, distinct experts, the busiest rank of an expert group, and the part of
    a prefill that hides behind the steps it is mixed into.
    """
    best: dict[str, Any] = dict.fromkeys(_SHARES, 1.0)
    best |= {field.name: 0.0 for field in fields(coefficients) if field.name.endswith("_s")}
    return replace(
        coefficients,
        matmul={"bf16": 1.0},
        stream=dict.fromkeys(coefficients.stream, 1.0),
        overlap_power=np.inf,
        interference=np.minimum(coefficients.interference, 1.0),
        **best,
    )


def coefficients_for(accelerator: Accelerator, engine: str = "") -> Coefficients:
    """The coefficients of ``accelerator``'s kind of card under the kernels of ``engine``; cards never measured share the row "any
    other card"."""
    return _coefficients(accelerator.vendor, accelerator.compute_capability, engine)


@cache
def _coefficients(maker: str, capability: float | None, engine: str) -> Coefficients:
    vendor = maker.lower()
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
    shared |= _habits(data["engine_kernels"].get(engine, {}), maker)
    return Coefficients(
        card=chosen["name"],
        known_card=known,
        source=data["sources"][chosen["source"]],
        matmul=chosen["matmul"],
        stream={int(key.removeprefix("bits")): share for key, share in chosen["stream"].items()},
        cache_stream=chosen["cache_stream"],
        prefill_attention=chosen["prefill_attention"],
        expanded_matmul=chosen.get("expanded_matmul", 1.0),
        expanded_stream=chosen.get("expanded_stream", 1.0),
        **shared,
    )


def _habits(row: Mapping[str, Any], maker: str) -> dict[str, Any]:
    """What an engine's kernels do otherwise on cards of ``maker``."""
    if not row:
        return {}
    return {
        "row_by_row_tokens": row["row_by_row_tokens_of"].get(maker, row["row_by_row_tokens"]),
        "quantised_in_int8": row["quantised_in_int8"],
        "sums_in_fp16": row["sums_in_fp16"],
        "kernel_s": row["kernel_s"],
        "attention_kernel_s": row["attention_kernel_s"],
    }


@cache
def spec_sheet() -> Mapping[str, Any]:
    """The data file of spec-sheet timing, as read."""
    return read_data("coefficients/spec_sheet.toml")
