"""The flags of ``mlx_lm.server`` and ``mlx_lm.generate``; facts: data/engines/mlx_lm_flags.json."""

from __future__ import annotations

from trilemma.commands.flags import FlagTable, read_table


def table() -> FlagTable:
    """The shipped table, read once."""
    return read_table("mlx_lm_flags.json", "MLX-LM", opposites=False, dotted=False, abbreviated=True)
