"""What words of a checkpoint's name say of its quantisation without naming a scheme; facts: data/models/schemes.toml."""

from __future__ import annotations

from functools import cache
from typing import Any

from trilemma.data.files import read_data


def prefix_of(publisher: str) -> str:
    """The word that schemes of a publisher have in front ("4bit" of mlx-community is mlx-4bit); "" for others."""
    return str(_document()["prefixes"].get(publisher.lower(), ""))


def states_bits(method: str) -> bool:
    """Whether repositories of an unstated ``method`` say in their names how many bits a weight has."""
    return method in _document()["unstated"]["bits_in_names"]


@cache
def unstated_methods() -> frozenset[str]:
    """Methods whose name alone does not tell how many bits a weight has."""
    return frozenset(_document()["unstated"]["names"])


@cache
def _document() -> dict[str, Any]:
    return read_data("models/schemes.toml")
