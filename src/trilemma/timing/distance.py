"""How far a question lies from the runs that serving terms were fitted to: in classes, from their own deployment outwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trilemma.models.architecture import Model

#: Classes from near to far, and what each says of the runs behind a figure.
DISTANCES: Mapping[str, str] = {
    "own deployment": "runs of this model on this deployment",
    "other model": "runs of other models on this deployment",
    "other precision": "runs of this engine on this card in other precisions",
    "pair never together": "runs of this engine and of this card, never of both together",
    "card never seen": "runs of this engine on other cards",
    "engine never seen": "runs of other engines",
}
#: Classes that runs of this engine on this card stand behind.
NEAR = ("own deployment", "other model", "other precision")


def shape_of(model: Model) -> str:
    """What tells models apart where names do not: checkpoints of one shape are one model to a card, however they are stored.

    Layers, width and vocabulary, then how many layers have which heads and feed-forward, as ``80 x 8192, 128256 words: 80 of full
    64/8/128/128 + 28672``: the numbers of their classes in order (`trilemma.models`).
    """
    # layers share few objects, which are told once each
    parts = [(id(layer.mixer), id(layer.ffn)) for layer in model.layers]
    told = dict(zip(parts, model.layers, strict=True))
    kinds: Counter[str] = Counter()
    for part, count in Counter(parts).items():
        kinds[f"{_numbers_of(told[part].mixer)} + {_numbers_of(told[part].ffn)}"] += count
    layers = "; ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
    return f"{len(model.layers)} x {model.hidden}, {model.vocab} words: {layers}"


def _numbers_of(part: Any) -> str:
    if part is None:
        return "none"
    values = (getattr(part, one.name) for one in fields(part))
    numbers = "/".join(
        str(value) for value in values if isinstance(value, int) and not isinstance(value, bool) and value
    )
    return f"{part.label} {numbers}" if hasattr(part, "label") else numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a fit saw: engines, cards, sites (engine and card) and deployments by their keys (`serving_terms.keys_of`), and the
    shapes of models (`shape_of`) by deployment."""

    engines: frozenset[str] = frozenset()
    cards: frozenset[str] = frozenset()
    sites: frozenset[str] = frozenset()
    deployments: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def distance(self, *, engine: str, card: str, precision: str, shape: str) -> str:
        """The class of a model of ``shape`` on a deployment."""
        site = f"{engine} {card}"
        deployment = f"{site} {precision}"
        if deployment in self.deployments:
            return "own deployment" if shape in self.deployments[deployment] else "other model"
        if site in self.sites:
            return "other precision"
        if engine not in self.engines:
            return "engine never seen"
        return "pair never together" if card in self.cards else "card never seen"

    @classmethod
    def of(cls, runs: Sequence[tuple[str, str, str, str]]) -> Seen:
        """By (engine, card, precision, shape of the model) of each run."""
        deployments: dict[str, set[str]] = {}
        for engine, card, precision, shape in runs:
            deployments.setdefault(f"{engine} {card} {precision}", set()).add(shape)
        return cls(
            engines=frozenset(engine for engine, *_ in runs),
            cards=frozenset(card for _, card, *_ in runs),
            sites=frozenset(f"{engine} {card}" for engine, card, *_ in runs),
            deployments={key: frozenset(shapes) for key, shapes in deployments.items()},
        )
