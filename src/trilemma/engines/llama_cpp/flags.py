"""The flags of llama-server; facts: data/engines/llama_cpp_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, read_table


def table() -> FlagTable:
    """The shipped table, read once. Underscores of long flags equal hyphens; nothing may be cut short (common/arg.cpp)."""
    return read_table("llama_cpp_flags.json", "llama.cpp", opposites=False, dotted=False, abbreviated=False)
