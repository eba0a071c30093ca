"""Slices of cards (MIG): which an instance takes of the eight memory slices of its card, and which it may."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trilemma.data.files import read_data
from trilemma.errors import InputError, UnknownName, shorten

_FILE = "simulation/mig_profiles.toml"


class SliceShape(NamedTuple):
    """``memory`` slices from one of ``starts``, ``compute`` sevenths of the SMs."""

    compute: int
    memory: int
    starts: tuple[int, ...]


@cache
def memory_slices() -> int:
    return int(read_data(_FILE)["memory_slices"])


@cache
def slice_shapes() -> tuple[SliceShape, ...]:
    """Every shape that an instance may have."""
    return tuple(SliceShape(one["compute"], one["memory"], tuple(one["starts"])) for one in read_data(_FILE)["shape"])


def slice_shape(profile: str, models: Iterable[str]) -> SliceShape:
    """The shape of ``profile`` on the cards that nodes call ``models``. Raises `InputError` where none has it, or where it is
    not the same on all that do."""
    families = [one for one in read_data(_FILE)["family"] if profile in one["profiles"]]
    if not families:
        known = sorted({name for one in read_data(_FILE)["family"] for name in one["profiles"]})
        raise InputError(f"mig {shorten(profile, most=40)!r} is no profile; use {', '.join(known)}")
    cards = {_card(one) for one in models} - {""}
    if cards:
        families = [one for one in families if cards & set(one["cards"])]
        if not families:
            raise InputError(
                f"mig {profile} is no profile of {', '.join(sorted(cards))}; use one that nvidia-smi mig -lgip prints"
            )
    shapes: set[SliceShape] = {slice_shapes()[one["profiles"].index(profile)] for one in families}
    if len(shapes) > 1:
        raise InputError(f"mig {profile} is of several sizes by the card; name the cards of the nodes, or `gpu`")
    return shapes.pop()


def _card(model: str) -> str:
    """The id of a card that nodes name; "" where nobody knows it."""
    from trilemma.hardware.catalogue import find_measured

    try:
        return find_measured(model)[0].id if model else ""
    except (InputError, UnknownName):
        return ""


@cache
def room_of(memory: int, starts: tuple[int, ...]) -> NDArray[np.int64]:
    """How many more instances of a shape go on a card, by the slices that are taken (a bit each): (2 ** slices,)."""
    taken = np.arange(2 ** memory_slices())
    found: Any = sum(((taken >> start) & (2**memory - 1) == 0).astype(np.int64) for start in starts)
    return np.asarray(found)


@cache
def start_of(memory: int, starts: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the next one begins: the place that leaves most places for instances of any shape; -1 where none is free."""
    free = range(2 ** memory_slices())
    return np.array([_best_start(taken, memory, starts) for taken in free])


def _best_start(taken: int, memory: int, starts: tuple[int, ...]) -> int:
    bits = 2**memory - 1
    there = [start for start in starts if not (taken >> start) & bits]
    left = {start: sum(int(room_of(of, at)[taken | bits << start]) for _, of, at in slice_shapes()) for start in there}
    return max(there, key=lambda start: (left[start], start), default=-1)
