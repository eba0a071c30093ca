"""What one version of TensorRT-LLM does: defaults read from ``data/engines/tensorrt_llm.toml``, nothing computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.plain_toml import read_data
from trilemma.errors import Caution, shorten
from trilemma.versions import Version, in_force, padded, parse_version


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorrtLlmFacts:
    """The facts in force for one version; ``known`` is False for one newer than all recorded or not given.

    ``backend`` is "tensorrt" where engines are built ahead, else "pytorch".
    """

    version: str
    known: bool
    memory_fraction: float
    backend: str
    max_batch_size: int
    max_num_tokens: int
    block_size: int
    graph_batch: int
    vocab_padding: int
    sources: Mapping[str, str]
    cautions: tuple[Caution, ...] = ()


def for_version(version: str | None, *, date: str | None = None) -> TensorrtLlmFacts:
    """Facts of ``version`` ("1.2.0"); without one the release of ``date`` (ISO), else the newest, marked so."""
    newest = padded(parse_version(_data()["newest"], engine="TensorRT-LLM"))
    if not (version or "").strip():
        out = [row["version"] for row in _data()["release"] if date and str(row["date"]) <= date]
        numbers = padded(parse_version(out[-1])) if out else newest
        shown = ".".join(map(str, numbers))
        why = f"the release of {date}" if out else "the newest known"
        note = Caution(code="assumed-engine-version", message=f"no TensorRT-LLM version given: {shown}, {why}")
        return _facts(numbers, known=False, cautions=(note,))
    numbers = padded(parse_version(str(version), engine="TensorRT-LLM"))
    if numbers[:2] > newest[:2]:
        shown = shorten(str(version))
        message = f"TensorRT-LLM {shown} is newer than the facts known ({_data()['newest']}); they are used, widened"
        return _facts(numbers, known=False, cautions=(Caution(code="newer-engine", message=message),))
    return _facts(numbers, known=True)


@cache
def _data() -> dict[str, Any]:
    return read_data("engines/tensorrt_llm.toml")


@cache
def _facts(numbers: Version, *, known: bool, cautions: tuple[Caution, ...] = ()) -> TensorrtLlmFacts:
    rows = in_force(_data()["fact"], numbers, engine="TensorRT-LLM")
    return TensorrtLlmFacts(
        version=".".join(map(str, numbers)),
        known=known,
        sources={name: str(row["source"]) for name, row in rows.items()},
        cautions=cautions,
        **{name: row["value"] for name, row in rows.items()},
    )
