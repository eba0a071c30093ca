"""The flags of trtllm-serve and the keys of its YAML; facts: data/engines/tensorrt_llm_flags.json."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trilemma.commands.flags import FlagTable, read_table
from trilemma.data.files import read_data

_FILE = "tensorrt_llm_flags.json"


def table() -> FlagTable:
    """The shipped table, read once. Underscores and hyphens are the same here; nothing may be cut short (click)."""
    return read_table(_FILE, "TensorRT-LLM", opposites=False, dotted=False, abbreviated=False)


@cache
def keys() -> Mapping[str, str]:
    """Key of the YAML (dots reach into mappings) → flag that says the same."""
    return dict(read_data(f"engines/{_FILE}")["keys"])
