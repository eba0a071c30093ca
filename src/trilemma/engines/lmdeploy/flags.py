"""The flags of ``lmdeploy serve api_server``; facts: data/engines/lmdeploy_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, read_table


def table() -> FlagTable:
    """The shipped table, read once."""
    return read_table("lmdeploy_flags.json", "LMDeploy", opposites=False, dotted=False, abbreviated=True)
