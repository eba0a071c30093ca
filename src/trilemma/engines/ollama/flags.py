"""The flags of ``ollama run`` and ``ollama create``; facts: data/engines/ollama_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, read_table


def table() -> FlagTable:
    """The shipped table, read once."""
    return read_table("ollama_flags.json", "Ollama", opposites=False, dotted=False, abbreviated=False)
