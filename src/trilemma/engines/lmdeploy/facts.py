"""What one version of LMDeploy does: defaults read from ``data/engines/lmdeploy.toml``, nothing computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trilemma.data.files import read_data
from trilemma.engines.facts import FactFile, Facts
from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.formats.formats import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class LmdeployFacts(Facts):
    """The facts in force for one version; ``known`` is False for one newer than all recorded or not given."""

    memory_fraction: float
    share_of: Literal["card", "free"]
    backend: str
    batch: Mapping[str, int]
    prefill_tokens: int
    block_size: int
    set_aside: tuple[float, float]
    least_blocks: int

    def batch_on(self, card: str) -> int:
        """Sequences at once on the card of that id, where nothing states them."""
        return next((number for part, number in self.batch.items() if part and part in card), self.batch[""])


def _shaped(values: dict[str, Any]) -> dict[str, Any]:
    each, beside = values["set_aside"]
    return {**values, "set_aside": (float(each), float(beside))}


FACTS = FactFile("lmdeploy.toml", "LMDeploy", LmdeployFacts, shaped=_shaped)
for_version = FACTS.for_version


def policy_of(word: str | None) -> str | None:
    """The number of ``--quant-policy`` that a word or a format of a plan means; None for 16 bits. Raises `InputError`."""
    asked = str(word or "auto").lower()
    known = read_data("engines/lmdeploy.toml")["cache_formats"]
    number = known["words"].get(asked, asked)
    number = {"int8_channel": "8", "int4_channel": "4"}.get(number, number)
    if number in ("0", "auto"):
        return None
    if number not in known["formats"]:
        raise InputError(f"--quant-policy {shorten(asked)!r} is none that is known here; use 0, 4, 8, 16 (FP8) or 17")
    return str(number)


def cache_format(word: str | None, computed: Format) -> Format:
    """The format of the cache under ``--quant-policy``: integers with a scale and a zero a vector. Raises `InputError`."""
    policy = policy_of(word)
    return (
        computed
        if policy is None
        else catalogue.get(read_data("engines/lmdeploy.toml")["cache_formats"]["formats"][policy])
    )
