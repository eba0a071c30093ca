"""The flags of vLLM's command line; facts: data/engines/vllm_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, Given, read_table


def table() -> FlagTable:
    """The shipped table, read once."""
    return read_table("vllm_flags.json", "vLLM")


def lookup(word: str) -> Given | None:
    """See `FlagTable.lookup`."""
    return table().lookup(word)
