"""Fragmentation gradient descent: put a pod where it leaves the least that the usual pods cannot use (Weng et al. 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.placement import ChosenPlace, TightestPlacement
from trilemma.simulation.cluster.state import ClusterState

#: Share of the jobs that the usual shapes stand for, commonest first.
_POPULAR = 0.95
_HIGHEST = 100
#: States of a node that are weighed at once: bounds the memory of a table (states, cards, shapes).
_MOST_STATES = 4096


class UsualPods:
    """The commonest shapes of a workload with their shares, as columns over the shapes."""

    def __init__(self, state: ClusterState, shapes: Iterable[GangShape]) -> None:
        keys = Counter((one.cpu_milli, one.gpu_milli if one.gpus else 0, one.gpus, one.models) for one in shapes)
        total, reached = sum(keys.values()), 0
        kept: list[tuple[tuple[int, int, int, tuple[str, ...]], int]] = []
        for key, many in sorted(keys.items(), key=lambda one: (one[1], one[0]), reverse=True):
            if reached >= _POPULAR * total:
                break
            kept.append((key, many))
            reached += many
        self.share = np.array([many / reached for _, many in kept])
        self.cpu, self.milli, self.cards = (np.array([key[at] for key, _ in kept], dtype=np.int64) for at in range(3))
        kinds = sorted({one.model for one in state.nodes})
        self.kind = np.array([kinds.index(one.model) for one in state.nodes])
        self.allowed = np.array([[not key[3] or kind in key[3] for key, _ in kept] for kind in kinds])

    def unusable(self, cpu: Any, left: Any, kind: Any) -> Any:
        """Thousandths of cards that the usual pods cannot use, weighed by their shares (states,).

        ``cpu`` (states,) and ``left`` (states, cards) are free, ``kind`` (states,) of cards. Where a pod goes, cards too small
        for it count; where it does not, or asks for no card, all that is free does (Weng et al. 2023, section 4).
        """
        total = left.sum(axis=1)
        fits = left[:, :, None] >= self.milli
        goes = (fits.sum(axis=1) >= self.cards) & (cpu[:, None] >= self.cpu) & self.allowed[kind] & (self.milli > 0)
        too_small = total[:, None] - np.einsum("sc,sct->st", left, fits)
        return np.where(goes, too_small, total[:, None]) @ self.share


class GradientPlacement(TightestPlacement):
    """The node and card where what becomes unusable grows least. Scores of a shape are kept until a node changes."""

    name: ClassVar[str] = "fgd"

    def __init__(self, state: ClusterState, shapes: Any, seed: int = 0) -> None:
        super().__init__(state, shapes, seed)
        self.usual = UsualPods(state, shapes)
        many = len(state.nodes)
        self._now, self._now_seen = np.zeros(many), np.full(many, -1)
        self._kept: dict[Any, tuple[Any, Any, Any]] = {}

    def one(self, shape: GangShape, there: Any) -> ChosenPlace:
        key = (shape.cpu_milli, shape.gpu_milli, shape.gpus, shape.slices)
        if key not in self._kept:
            many = len(self.state.nodes)
            self._kept[key] = np.zeros(many, dtype=np.int64), np.zeros(many, dtype=np.int64), np.full(many, -1)
        scores, cards, seen = self._kept[key]
        changed = there[self.state.versions[there] > seen[there]]
        for begin in range(0, len(changed), _MOST_STATES // 8):
            part = changed[begin : begin + _MOST_STATES // 8]
            scores[part], cards[part] = self._scored(shape, part)
        seen[changed] = self.state.versions[changed]
        node = self.first_best(there, scores[there])
        shared = shape.gpus == 1 and shape.gpu_milli < WHOLE
        return ChosenPlace([(node, 1)], (int(cards[node]),) if shared else None)

    def _scored(self, shape: GangShape, part: Any) -> tuple[Any, Any]:
        """Scores of the nodes ``part`` for a pod, and the card that gives each."""
        state = self.state
        stale = part[state.versions[part] > self._now_seen[part]]
        if len(stale):
            self._now[stale] = self.usual.unusable(state.cpu[stale], state.left[stale], self.usual.kind[stale])
            self._now_seen[stale] = state.versions[stale]
        if shape.gpus != 1 or shape.gpu_milli == WHOLE or shape.slices:
            left = _less_whole_cards(state.left[part], shape.gpus)
            after = self.usual.unusable(state.cpu[part] - shape.cpu_milli, left, self.usual.kind[part])
            return _score(self._now[part] - after), np.zeros(len(part), dtype=np.int64)
        where, card = np.nonzero(state.shared_left(part) >= shape.gpu_milli)
        left = state.left[part][where]
        left[np.arange(len(where)), card] -= shape.gpu_milli
        after = self.usual.unusable(state.cpu[part][where] - shape.cpu_milli, left, self.usual.kind[part][where])
        found = np.full((len(part), state.left.shape[1]), -1, dtype=np.int64)
        found[where, card] = _score(self._now[part][where] - after)
        best = found.argmax(axis=1)
        return found[np.arange(len(part)), best], best


def _score(falls: Any) -> Any:
    """Whole scores up to 100 of by how much the unusable falls, in thousandths of cards."""
    return (_HIGHEST / (1.0 + np.exp(-falls / WHOLE))).astype(np.int64)


def _less_whole_cards(left: Any, gpus: int) -> Any:
    """``left`` (states, cards) with the first ``gpus`` free cards of each taken."""
    whole = left == WHOLE
    return np.where(whole & (whole.cumsum(axis=1) <= gpus), 0, left)
