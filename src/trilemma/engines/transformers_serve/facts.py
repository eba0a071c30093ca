"""What one version of Transformers does when it serves; read from ``data/engines/transformers_serve.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.plain_toml import read_data
from trilemma.errors import Caution, shorten
from trilemma.versions import Version, in_force, padded, parse_version


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersFacts:
    """The facts in force for one version; ``known`` is False for one newer than all recorded or not given."""

    version: str
    known: bool
    loads_in_float32: bool
    sequences: int
    logits_of_all_tokens: bool
    pool_share: float
    sources: Mapping[str, str]
    cautions: tuple[Caution, ...] = ()


def for_version(version: str | None) -> TransformersFacts:
    """Facts of ``version`` ("5.24.0"); without one the newest, marked so."""
    newest = padded(parse_version(_data()["newest"], engine="Transformers"))
    if not (version or "").strip():
        shown = ".".join(map(str, newest))
        note = Caution(
            code="assumed-engine-version", message=f"no Transformers version given: the newest known, {shown}"
        )
        return _facts(newest, known=False, cautions=(note,))
    numbers = padded(parse_version(str(version), engine="Transformers"))
    if numbers[:2] > newest[:2]:
        shown = shorten(str(version))
        message = f"Transformers {shown} is newer than the facts known ({_data()['newest']}); they are used, widened"
        return _facts(numbers, known=False, cautions=(Caution(code="newer-engine", message=message),))
    return _facts(numbers, known=True)


@cache
def _data() -> dict[str, Any]:
    return read_data("engines/transformers_serve.toml")


@cache
def _facts(numbers: Version, *, known: bool, cautions: tuple[Caution, ...] = ()) -> TransformersFacts:
    rows = in_force(_data()["fact"], numbers, engine="Transformers")
    return TransformersFacts(
        version=".".join(map(str, numbers)),
        known=known,
        sources={name: str(row["source"]) for name, row in rows.items()},
        cautions=cautions,
        **{name: row["value"] for name, row in rows.items()},
    )
