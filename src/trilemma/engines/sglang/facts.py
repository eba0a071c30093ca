"""What one version of SGLang does: defaults and rules read from ``data/engines/sglang.toml``, nothing computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.plain_toml import read_data
from trilemma.errors import Caution, InputError, shorten
from trilemma.versions import Version, in_force, padded, parse_version


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangFacts:
    """The facts in force for one version; each field's source stands in ``sources`` and the data file.

    ``known`` is False for a version newer than every recorded one or not given: intervals are widened.
    """

    version: str
    known: bool
    card_classes: Mapping[str, Any]
    reserve: Mapping[str, Any]
    sized_after_capture_mib: float
    encoder_share: float
    sparse_counted: Mapping[str, bool]
    sparse_raw_from: float
    sparse_16_bit_below: float
    window_pool_ratio: float
    window_pool_families: tuple[str, ...]
    state_ratio: float
    states_per_request: int
    page_size: int
    sparse_page_size: int
    requests: Mapping[str, int]
    quantizes_while_loading: Mapping[str, str]
    vocab_padding: int
    sources: Mapping[str, str]
    cautions: tuple[Caution, ...] = ()


def for_version(version: str | None, *, date: str | None = None) -> SglangFacts:
    """Facts of ``version`` ("0.5.10"); without one the release of ``date`` (ISO), else the newest, marked so."""
    newest = padded(parse_version(_data()["newest"], engine="SGLang"))
    if not (version or "").strip():
        numbers = release_of(date) if date else newest
        shown = ".".join(map(str, numbers))
        why = f"the release of {date}" if date else "the newest known"
        note = Caution(code="assumed-engine-version", message=f"no SGLang version given: {shown}, {why}")
        return _facts(numbers, known=False, cautions=(note,))
    numbers = padded(parse_version(str(version), engine="SGLang"))
    if numbers > newest:
        message = f"SGLang {shorten(str(version))} is newer than the facts known ({_data()['newest']}); they are used, widened"
        return _facts(numbers, known=False, cautions=(Caution(code="newer-engine", message=message),))
    return _facts(numbers, known=True)


def release_of(date: str) -> Version:
    """The newest release line out on ``date`` (a month or year alone means its middle), else the oldest."""
    if re.fullmatch(r"\d{4}(-\d{2}(-\d{2})?)?", date) is None:
        raise InputError(f"date {shorten(date)!r} is not a date such as 2026-04-22")
    day = date + {4: "-07-01", 7: "-15"}.get(len(date), "")
    out = [row["version"] for row in _data()["release"] if str(row["date"]) <= day]
    return padded(parse_version(out[-1] if out else _data()["release"][0]["version"], engine="SGLang"))


@cache
def _data() -> dict[str, Any]:
    return read_data("engines/sglang.toml")


@cache
def _facts(numbers: Version, *, known: bool, cautions: tuple[Caution, ...] = ()) -> SglangFacts:
    rows = in_force(_data()["fact"], numbers, engine="SGLang")
    values = {name: row["value"] for name, row in rows.items()}
    values["window_pool_families"] = tuple(values["window_pool_families"])
    return SglangFacts(
        version=".".join(map(str, numbers)),
        known=known,
        sources={name: str(row["source"]) for name, row in rows.items()},
        cautions=cautions,
        **values,
    )
