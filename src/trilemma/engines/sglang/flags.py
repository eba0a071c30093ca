"""The flags of SGLang's command line; facts: data/engines/sglang_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, read_table


def table() -> FlagTable:
    """The shipped table, read once. argparse takes long flags as they are spelt, or cut to a unique beginning."""
    return read_table("sglang_flags.json", "SGLang", underscores=False, opposites=False, dotted=False)
