"""What one version of vLLM does: defaults and rules read from ``data/engines/vllm.toml``, nothing computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from trilemma.data.plain_toml import read_data
from trilemma.errors import Caution, InputError, shorten
from trilemma.versions import Version, in_force, parse_version

__all__ = ["BatchDefaults", "GraphSizes", "Version", "VllmFacts", "for_version", "parse_version", "release_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDefaults:
    """Default sequences and batched tokens: ``large`` from ``large_card_bytes`` on (save cards ``not_large``), else ``small``."""

    large_card_bytes: float
    large: tuple[int, int]
    small: tuple[int, int]
    not_large: tuple[str, ...] = ()

    def of_card(self, capacity_bytes: float, card: str) -> tuple[int, int]:
        """(sequences, tokens) on a card of ``capacity_bytes`` whose id is ``card``."""
        named = any(word in card.lower() for word in self.not_large)
        return self.large if capacity_bytes >= self.large_card_bytes and not named else self.small


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSizes:
    """CUDA graphs captured: batches up to ``min(most, per_sequence · sequences)``, in ``kinds`` modes."""

    most: int
    per_sequence: int
    kinds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmFacts:
    """The facts in force for one version; each field's source stands in the data file and in ``sources``.

    ``known`` is False for a version newer than every recorded one or not given: its intervals are widened.
    """

    version: str
    known: bool
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
    state_block_check: bool
    graph_sizes: GraphSizes
    vendors: Sequence[str]
    budget_checked_at_start: bool
    mla_weight_copies: bool
    vocab_padding: int
    quantizes_while_loading: Mapping[str, str]
    quantizes_layer_by_layer: bool
    linear_rope_factors: Mapping[str, int]
    expert_padding: Mapping[str, tuple[int, int]]
    era: str
    sources: Mapping[str, str]
    cautions: tuple[Caution, ...] = ()


def for_version(version: str | None, *, date: str | None = None) -> VllmFacts:
    """Facts of ``version`` ("0.19.0", "0.20.2rc1.dev249 (fork)"); without one the release of ``date`` (ISO), else the newest.

    A fork's own number is not trusted when it carries a build date ("0.11.2.dev280 (fork build of 2026-08-10)"): the
    release of that date is taken. Raises `InputError` for text without a version in it.
    """
    asked = (version or "").strip()
    built = re.search(r"fork build of (\d{4}-\d{2}(?:-\d{2})?)", asked)
    if built is not None:
        note = Caution(
            code="fork-version", message=f"vLLM {shorten(asked)}: a fork, read as the release of its build date"
        )
        return _facts(release_of(built.group(1)), known=False, cautions=(note,))
    if not asked:
        return _without_version(date)
    numbers = parse_version(asked)
    newest = parse_version(_data()["newest"])
    if numbers[:2] > newest[:2]:
        note = Caution(
            code="newer-engine",
            message=f"vLLM {shorten(asked)} is newer than the facts known ({_data()['newest']}); they are used, widened",
        )
        return _facts(numbers, known=False, cautions=(note,))
    return _facts(numbers, known=True)


def release_of(date: str) -> Version:
    """The newest minor release out on ``date`` (``2026-04-22``; a month or year alone means its middle), else the oldest."""
    if re.fullmatch(r"\d{4}(-\d{2}(-\d{2})?)?", date) is None:
        raise InputError(f"date {shorten(date)!r} is not a date such as 2026-04-22")
    padded = date + {4: "-07-01", 7: "-15"}.get(len(date), "")
    chosen = None
    for release in _data()["release"]:
        if str(release["date"]) <= padded or chosen is None:
            chosen = release["version"]
    return parse_version(str(chosen))


def _without_version(date: str | None) -> VllmFacts:
    if date:
        facts = _facts(release_of(date), known=False)
        note = Caution(
            code="assumed-engine-version", message=f"no vLLM version given: {facts.version}, the release of {date}"
        )
    else:
        facts = _facts(parse_version(_data()["newest"]), known=False)
        note = Caution(
            code="assumed-engine-version", message=f"no vLLM version given: the newest known, {facts.version}"
        )
    return _facts(parse_version(facts.version), known=False, cautions=(note,))


@cache
def _data() -> dict[str, Any]:
    return read_data("engines/vllm.toml")


@cache
def _facts(numbers: Version, *, known: bool, cautions: tuple[Caution, ...] = ()) -> VllmFacts:
    rows = in_force(_data()["fact"], numbers, engine="vLLM")
    values = {name: row["value"] for name, row in rows.items()}
    batches = values.pop("batch_sizes_by_card")
    return VllmFacts(
        version=".".join(map(str, numbers)),
        known=known,
        batch_sizes_by_card=BatchDefaults(
            large_card_bytes=batches["large_card_bytes"],
            large=tuple(batches["large"]),
            small=tuple(batches["small"]),
            not_large=tuple(batches.get("not_large", ())),
        ),
        graph_sizes=GraphSizes(**values.pop("graph_sizes")),
        expert_padding={name: (pair[0], pair[1]) for name, pair in values.pop("expert_padding").items()},
        sources={name: str(row["source"]) for name, row in rows.items()},
        cautions=cautions,
        **values,
    )
