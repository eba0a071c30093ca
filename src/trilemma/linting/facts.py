"""Data files of the linter, read once: what they hold is shared and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from trilemma.data.files import read_data


@cache
def facts(name: str) -> Mapping[str, Any]:
    """The data file ``name``."""
    return read_data(name)
