"""The flags of ``lms load``; facts: data/engines/lm_studio_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, read_table


def table() -> FlagTable:
    """The shipped table, read once."""
    return read_table("lm_studio_flags.json", "LM Studio", opposites=False, dotted=False, abbreviated=False)
