"""One law for what a layer keeps of past tokens, a row for every kind of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheLaw:
    """What one layer keeps per sequence on one tensor-parallel rank.

    ``fixed_bytes`` whatever the length (recurrent state); ``bytes_per_token`` for each stored entry; one entry per
    ``stride`` tokens; at most ``window`` tokens looked back on (None: all). ``shard`` says what decode context parallelism
    may divide: "tokens" the cached tokens, "none" stays replicated, "heads" is already divided by tensor parallelism.
    """

    kind: str
    fixed_bytes: Numbers = 0
    bytes_per_token: Numbers = 0
    stride: int = 1
    window: int | None = None
    shard: Literal["heads", "tokens", "none"] = "heads"
