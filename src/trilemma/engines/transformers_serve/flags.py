"""The flags of ``transformers serve``; facts: data/engines/transformers_serve_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, read_table


def table() -> FlagTable:
    """The shipped table, read once."""
    return read_table("transformers_serve_flags.json", "Transformers", opposites=False, dotted=False, abbreviated=False)
