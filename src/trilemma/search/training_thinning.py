"""Chunks and micro-batches that tell, where a table of training plans is too large to price whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Above the small micro-batches those that are larger by the step.
_FINE_MICRO_BATCH, _MICRO_BATCH_STEP = 8, 1.3


def telling_chunks(layers: int, pp: int) -> NDArray[np.int64]:
    """Numbers of chunks of a stage: of those whose largest chunk has as many layers, the fewest and the most."""
    counts = np.arange(1, max(layers // pp, 1) + 1)
    changes = np.diff(-(-layers // (pp * counts))) != 0
    return np.asarray(counts[np.append(changes, True) | np.insert(changes, 0, True)])


def telling_sizes(sizes: Sequence[int]) -> list[int]:
    """Every small size, larger ones where they differ enough to matter."""
    kept: list[int] = []
    for size in sizes:
        if size <= _FINE_MICRO_BATCH or size >= _MICRO_BATCH_STEP * kept[-1]:
            kept.append(size)
    return kept
