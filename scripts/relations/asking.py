"""What is asked, of whom, and how an answer is held to a relation."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import trilemma as tl
from trilemma.engines import traits_of


class Unasked(Exception):
    """A relation that has nothing to say of this question."""


@dataclass(frozen=True)
class Asked:
    """One question: keywords of `trilemma.fit`, ``card`` and ``gpus`` apart, and what was asked of it so far."""

    model: str
    card: str
    gpus: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cards(self) -> str:
        return f"{self.card}:{self.gpus}"

    def but(self, *, gpus: int | None = None, **options: Any) -> Asked:
        kept = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        return replace(self, gpus=gpus or self.gpus, options=kept)

    def __str__(self) -> str:
        words = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in self.options.items()
        ]
        return f"fit {self.model} --gpu {self.cards} {' '.join(words)}"


load = cache(tl.load_model)


class Answers:
    """Asks without advice, which costs more than the answer, and counts how often."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, question: Asked, gpu: Any = None) -> tl.Estimate | None:
        """The answer; None where the layout or the engine cannot be."""
        from trilemma.ask.answers import Answer
        from trilemma.ask.options import FIT, settled
        from trilemma.ask.serving import question_of
        from trilemma.ask.training import training_question
        from trilemma.ask.training_options import TRAINING
        from trilemma.estimate.serving import estimate
        from trilemma.estimate.training import estimate_training

        self.asked += 1
        asked = (load(question.model), gpu or question.cards)
        try:
            if "seq" in question.options:
                told = estimate_training(training_question(*asked, settled(FIT, dict(question.options), TRAINING)))
            else:
                told = estimate(question_of(*asked, settled(FIT, dict(question.options))))
        except tl.InputError:
            return None
        return Answer.of(told)

    def variant(self, question: Asked, gpu: Any = None) -> tl.Estimate:
        """The answer; `Unasked` where there is none."""
        found = self(question, gpu)
        if found is None:
            raise Unasked
        return found

    def advised(self, question: Asked) -> tl.Estimate:
        """The answer with remedies."""
        self.asked += 1
        return tl.fit(load(question.model), question.cards, **question.options)


Relation = Callable[[Asked, Any, Answers], str | None]


def tokens_per_s(answer: tl.Estimate) -> float:
    """Of an answer that generates; nothing is to be said of others."""
    if answer.speed is None or answer.speed.output_tokens_per_s is None:
        raise Unasked
    return answer.speed.output_tokens_per_s.value


def slots_stated(question: Asked, answer: tl.Estimate) -> Asked:
    """``question`` with the slots of its answer, where its engine would choose them anew for every memory and length."""
    if not traits_of(answer.question.plan.engine.name).cache_in_slots:
        return question
    return question.but(max_seqs=int(answer.question.plan.pool.options.max_seqs or 1))


def figures(answer: Any) -> dict[str, Any]:
    """What two answers to one question agree on: memory line by line, cache, and every figure of speed."""
    told = document(answer)
    kept = {name: told.get(name) for name in ("memory", "kv_cache", "speed", "cost", "power")}
    kept["stage"] = told["verdict"]["stage"]
    return kept


def document(answer: tl.Estimate) -> dict[str, Any]:
    from trilemma.ask.answers import Answer

    return Answer.of(answer).to_dict()


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """Where two documents part first, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        inner = ((one.get(key), other.get(key), f"{where}.{key}") for key in keys if key not in ("formula", "source"))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        inner = ((a, b, f"{where}.{at}") for at, (a, b) in enumerate(zip(one, other, strict=True)))
    else:
        return None if one == other else f"{where.lstrip('.')}: {str(one)[:80]}, then {str(other)[:80]}"
    return next((found for a, b, at in inner if (found := difference(a, b, at))), None)


def chosen(rng: random.Random, options: dict[str, Any], name: str, chance: float, values: tuple[Any, ...]) -> None:
    """``name`` is stated with that chance."""
    if rng.random() < chance:
        options[name] = rng.choice(values)
