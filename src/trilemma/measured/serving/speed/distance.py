"""How far a row lies from those that its terms were fitted to: from its own deployment to an engine that was never seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from trilemma.measured.serving.speed.figures import SpeedFigures
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.timing.serving_terms import LEVELS, ServingTerms, keys_of

_ENGINE, _CARD, _SITE, _DEPLOYMENT = (LEVELS.index(level) for level in ("engine", "card", "site", "deployment"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Keys at each of `LEVELS` that a fit saw, and the (deployment, model) pairs; None where only the keys are known."""

    keys: tuple[frozenset[str], ...]
    models: frozenset[tuple[str, str]] | None = None

    @classmethod
    def by(cls, terms: ServingTerms) -> Seen:
        """What fitted ``terms`` tell of their rows: the deployments, not the models."""
        return cls(keys=tuple(frozenset(level) for level in terms.offsets))

    def distance(self, keys: Sequence[str], model: str) -> str:
        """The class of a row of ``model`` whose deployment has ``keys``."""
        if keys[_DEPLOYMENT] in self.keys[_DEPLOYMENT]:
            known = self.models is None or (keys[_DEPLOYMENT], model) in self.models
            return "own deployment" if known else "other model"
        if keys[_SITE] in self.keys[_SITE]:
            return "other precision"
        if keys[_ENGINE] not in self.keys[_ENGINE]:
            return "engine never seen"
        return "pair never together" if keys[_CARD] in self.keys[_CARD] else "card never seen"


def distances(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    seen: Seen,
    groups: Sequence[Hashable] | None = None,
) -> list[str]:
    """The class of every row; with ``groups`` each row as the rows of the other groups see it, without them as ``seen`` does."""
    found = [""] * len(questions)
    held: dict[Hashable, Seen] = {}
    for bench in benches:
        for at in bench.at:
            question = questions[at]
            assert isinstance(question, SpeedQuestion)
            if groups is not None and groups[at] not in held:
                held[groups[at]] = _others(benches, questions, groups, groups[at])
            known = seen if groups is None else held[groups[at]]
            keys = keys_of(bench.engine, bench.machine.accelerator, bench.precision)
            found[at] = known.distance(keys, question.model.name)
    return found


def _others(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    groups: Sequence[Hashable],
    left_out: Hashable,
) -> Seen:
    keys: list[set[str]] = [set() for _ in LEVELS]
    models: set[tuple[str, str]] = set()
    for bench in benches:
        rest = [questions[at] for at in bench.at if groups[at] != left_out]
        if rest:
            for level, key in zip(keys, bench.keys, strict=True):
                level.add(key)
            models |= {(bench.keys[_DEPLOYMENT], one.model.name) for one in rest if isinstance(one, SpeedQuestion)}
    return Seen(keys=tuple(map(frozenset, keys)), models=frozenset(models))
