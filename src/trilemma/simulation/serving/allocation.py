"""What paging saves: the share of the cache that holds nothing while requests grow, by how it is given out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trilemma.simulation.serving.traffic import Arrival

BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
#: Tokens of output that are looked at one by one; of longer outputs so many, evenly.
_LOOKS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationWaste:
    """``unfilled_share`` of what requests hold over the time of their outputs has no token in it.

    ``way``: ``paged`` in blocks of ``block_size``; ``whole_context`` reserved in one piece for each; ``power_of_two`` above the
    whole request, or just the ``whole_request``, its length known before.
    """

    way: str
    unfilled_share: float
    block_size: int | None = None


def waste_of(arrivals: Iterable[Arrival], *, context: int) -> tuple[AllocationWaste, ...]:
    """The waste of each way for these requests, each step of each of them alike; ``context`` is the longest that is admitted.

    A request of ``isl`` + ``osl`` tokens holds ``isl + t`` after ``t`` of its output. The last block of a sequence is half empty
    in the mean, so paging wastes about ``block / 2`` tokens a sequence; what is reserved ahead wastes what is yet to come.

    Source: Kwon et al. 2023, PagedAttention, sections 2 and 4 (reserved, internal and external fragmentation).
    """
    live: list[float] = []
    held: dict[tuple[str, int | None], float] = {}
    for one in arrivals:
        if one.isl + one.osl > context:
            continue
        tokens = one.isl + np.unique(np.linspace(0, one.osl, min(one.osl + 1, _LOOKS)).astype(np.int64))
        weight = (one.osl + 1) / len(tokens)
        whole = one.isl + one.osl
        live.append(float(tokens.sum()) * weight)
        ways: dict[tuple[str, int | None], float] = {
            ("paged", size): float((-(-tokens // size) * size).sum()) * weight for size in BLOCK_SIZES
        }
        ways |= {
            ("whole_request", None): float(whole) * (one.osl + 1),
            ("power_of_two", None): float(1 << (whole - 1).bit_length()) * (one.osl + 1),
            ("whole_context", None): float(context) * (one.osl + 1),
        }
        for way, size in ways.items():
            held[way] = held.get(way, 0.0) + size
    filled = sum(live)
    return tuple(
        AllocationWaste(way=way, unfilled_share=1 - filled / tokens, block_size=size)
        for (way, size), tokens in held.items()
    )
