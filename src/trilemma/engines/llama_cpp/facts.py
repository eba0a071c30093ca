"""What one build of llama.cpp does: defaults and rules read from ``data/engines/llama_cpp.toml``, nothing computed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trilemma.errors import Caution, shorten
from trilemma.versions import Version, in_force, padded, parse_version


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaCppFacts:
    """The facts in force for one build; ``known`` is False for one newer than all recorded or not given."""

    version: str
    known: bool
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
    sources: Mapping[str, str]
    cautions: tuple[Caution, ...] = ()


def for_version(version: str | None, *, date: str | None = None) -> LlamaCppFacts:
    """Facts of build ``version`` ("b6170"); without one the build of ``date`` (ISO), else the newest, marked so."""
    newest = padded(parse_version(_data()["newest"], engine="llama.cpp"))
    if not (version or "").strip():
        out = [row["version"] for row in _data()["release"] if date and str(row["date"]) <= date]
        numbers = padded(parse_version(out[-1], engine="llama.cpp")) if out else newest
        why = f"the build of {date}" if out else "the newest known"
        note = Caution(code="assumed-engine-version", message=f"no build of llama.cpp given: b{numbers[0]}, {why}")
        return _facts(numbers, known=False, cautions=(note,))
    numbers = padded(parse_version(str(version), engine="llama.cpp"))
    if numbers > newest:
        message = f"llama.cpp {shorten(str(version))} is newer than the facts known ({_data()['newest']}); they are used, widened"
        return _facts(numbers, known=False, cautions=(Caution(code="newer-engine", message=message),))
    return _facts(numbers, known=True)


@cache
def _data() -> dict[str, Any]:
    text = files("trilemma.data").joinpath("engines", "llama_cpp.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _facts(numbers: Version, *, known: bool, cautions: tuple[Caution, ...] = ()) -> LlamaCppFacts:
    rows = in_force(_data()["fact"], numbers, engine="llama.cpp")
    return LlamaCppFacts(
        version=f"b{numbers[0]}",
        known=known,
        sources={name: str(row["source"]) for name, row in rows.items()},
        cautions=cautions,
        **{name: row["value"] for name, row in rows.items()},
    )
