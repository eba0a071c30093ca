"""The shapes in which a job runs, the best first, and where one of them goes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.placement import ChosenPlace


class Fitting(NamedTuple):
    """Where a job goes, and as which shape of its: the whole gang, a smaller one, or cards apart."""

    place: ChosenPlace
    shape: GangShape


@lru_cache(maxsize=65536)
def shapes_of(shape: GangShape) -> tuple[GangShape, ...]:
    """What a job takes, the best first: the whole gang, then fewer pods, then its cards one by one where it may be divided."""
    found = [shape]
    if shape.fewest_pods:
        pods = shape.pods
        while pods > shape.fewest_pods:
            pods = max(pods // 2, shape.fewest_pods)
            found.append(replace(shape, pods=pods))
    if shape.divisible and shape.gpus > 1 and shape.gpu_milli == WHOLE:
        found.append(shape.in_single_cards())
    return tuple(found)
