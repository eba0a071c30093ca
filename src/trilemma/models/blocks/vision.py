"""Tensors of vision towers and their projectors."""

from __future__ import annotations

from collections.abc import Mapping

from trilemma.models.blocks.builder import Builder
from trilemma.models.fields import Fields


def add_vision(add: Builder, fields: Fields | None, text: Fields, *, hidden: int) -> Mapping[str, int]:
    """Add the tower that ``fields`` describes and return its sizes; without a reader its key is left as unknown."""
    if fields is None:
        return {}
    text.assume("the vision tower is not counted")
    return {}
