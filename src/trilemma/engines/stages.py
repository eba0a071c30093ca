"""Pipeline stages of a start-up: which layers each holds, what is loaded for them, and which stage is the tightest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from trilemma.engines.layer_cache import summed
from trilemma.engines.rank_memory import Weights
from trilemma.engines.table import BroadcastPlans
from trilemma.memory.stages import stage_bounds
from trilemma.models.architecture import Model
from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineStage:
    """What one pipeline stage needs of its card, cache apart: line → bytes; an engine adds the rates of its cache."""

    lines: Mapping[str, Any]


S = TypeVar("S", bound=PipelineStage)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpan:
    """The decoder layers ``start`` up to ``stop`` of one stage; ``upto`` with those that draft. Arrays (plans,)."""

    start: Any
    stop: Any
    first: Any
    last: Any
    upto: Any
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, model: Model, plans: BroadcastPlans, *, drafting_layers: int = 0) -> LayerSpan:
        depth = len(model.layers)
        start, stop = stage_bounds(depth, plans.pp, name)
        last = stop == depth
        upto = np.where(last, stop + drafting_layers, stop)
        return cls(start=start, stop=stop, first=start == 0, last=last, upto=upto, shape=plans.shape)

    @property
    def layers(self) -> Any:
        return self.stop - self.start

    def sum_of(self, values: Sequence[Any]) -> Any:
        """The sum over the stage's layers of what each keeps."""
        return summed(values, self.start, self.upto, self.shape)

    def loaded(
        self, weights: Weights, *, attention_tp: Numbers, tp: Numbers, ep: Numbers, drafts: bool, text_only: bool,
        on_host_bytes: float = 0.0,
    ) -> dict[str, Any]:  # fmt: skip
        """Lines of what is loaded: weights less what stays on the host, layers that draft, the vision tower."""
        held = weights.on_rank(
            start=self.start, stop=self.stop, first=self.first, last=self.last, attention_tp=attention_tp, tp=tp, ep=ep
        )
        none = np.zeros(self.shape)
        return {
            "weights": np.maximum(held.text - on_host_bytes, 0) + none,
            "draft_model": held.mtp + none if drafts else none,
            "vision": none if text_only else held.vision + none,
        }


def tightest(stages: Sequence[S], room: Sequence[Any], shape: tuple[int, ...]) -> S:
    """For every plan the stage with least ``room``, as one stage."""
    pick = np.argmin(np.stack([np.broadcast_to(one, shape) for one in room]), axis=0)[None] if len(stages) > 1 else None

    def picked(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {name: picked([value[name] for value in values]) for name in values[0]}
        if pick is None:
            return values[0] if np.shape(values[0]) == shape else np.broadcast_to(values[0], shape)
        return np.take_along_axis(np.stack([np.broadcast_to(one, shape) for one in values]), pick, axis=0)[0]

    return replace(stages[0], **{one.name: picked([getattr(s, one.name) for s in stages]) for one in fields(stages[0])})
