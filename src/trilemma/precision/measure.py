"""The measurement of real weights: data cut into tokens to calibrate on and to judge by, and a decoder to run on both."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten

if TYPE_CHECKING:
    from trilemma.precision.emulation import Emulator

#: Parameters below which one thread computes.
_SMALL = 20_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """One decoder on two disjoint sets of tokens."""

    source: str
    calibration: Emulator
    held_out: Emulator


def open_bench(weights: str | Path, data: str | Path, *, sequences: int = 8, window: int = 256) -> Evaluation:
    """The decoder at ``weights`` with up to ``sequences`` windows of ``window`` tokens of ``data`` for each purpose.

    Raises `InputError` for what cannot be read, and where PyTorch is missing.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError("measuring needs PyTorch; pip install 'trilemma[lab]'")
    if not 1 <= sequences <= 4096 or not 2 <= window <= 2**20:
        raise InputError(f"{sequences} windows of {window} tokens cannot be; give 1 to 4,096 of at least 2")
    from trilemma.precision.emulation import Emulator, cut
    from trilemma.precision.tokens import read_ids
    from trilemma.precision.weights_files import open_weights

    opened = open_weights(weights)
    if sum(math.prod(size) for size in opened.shape.tensors().values()) < _SMALL:
        import torch

        torch.set_num_threads(1)  # threads cost small products more than they give, most of all on a busy machine
    window = min(window, opened.shape.max_positions)
    calibration, held_out = cut(read_ids(data, opened), sequences=sequences, tokens=window)
    return Evaluation(
        source=opened.source, calibration=Emulator(opened, calibration), held_out=Emulator(opened, held_out)
    )


def candidates(stated: str | None, *, engine: str = "default") -> Sequence[str]:
    """Candidate formats: a comma-separated list, a named set, or the default set."""
    sets: dict[str, Any] = _sets()
    if stated is None:
        return tuple(sets[engine]["formats"])
    if stated in sets:
        return tuple(sets[stated]["formats"])
    names = tuple(name.strip() for name in stated[:4000].split(",") if name.strip())
    if not names or len(names) > 40:
        raise InputError(
            f"--formats {shorten(stated)!r} names {len(names)} formats; give 1 to 40, or one of {', '.join(sets)}"
        )
    return names


@cache
def _sets() -> dict[str, Any]:
    document = read_data("precision/candidates.toml")
    return dict(document["sets"])
