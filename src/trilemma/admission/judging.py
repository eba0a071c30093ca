"""Whether what an object would start can start: every engine in it judged on the cards that it asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trilemma.admission.review import Decision, Review
from trilemma.ask.answers import Answer
from trilemma.ask.checking import cards_of, checked_engine
from trilemma.ask.options import CHECK, settled
from trilemma.commands.pod_labels import cards_named
from trilemma.engines.extract import in_manifest
from trilemma.errors import InputError, shorten, with_flags
from trilemma.fence import fenced

#: Engines of one object that are judged.
_MOST_ENGINES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """``gpu`` is the card of pods that name none (None: such pods are not judged); a "does not start" said with at least the
    chance ``deny_from`` denies; ``unknown`` says what happens to what cannot be judged (a model or card that nobody knows,
    flags that cannot be read); ``models`` is a folder of configurations."""

    gpu: str | None = None
    deny_from: float = 0.9
    unknown: Literal["allow", "deny"] = "allow"
    models: str | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.deny_from <= 1.0:
            raise InputError(f"`deny_from` {self.deny_from:g} is no chance of at least 0.5, such as 0.9")
        if self.gpu is not None:
            cards_of(self.gpu)
        if self.models is not None and not Path(self.models).is_dir():
            raise InputError(
                f"`models` {shorten(self.models)} is no folder; give one that holds <org>--<name>/config.json"
            )


def decide(review: Review, policy: Policy) -> Decision:
    """Allowed, or not and why. What runs no engine is allowed, and so is what goes away."""
    if review.operation == "DELETE":
        return Decision(allowed=True)
    found = in_manifest([review.manifest])[:_MOST_ENGINES]
    cards = cards_named(review.manifest) or (() if policy.gpu is None else (policy.gpu,))
    denials: list[str] = []
    warnings: list[str] = []
    for run, (engine, words) in found:
        where = f"container {shorten(run.name, most=60)}"
        if not cards:
            warnings.append(f"{where}: not judged, no label says on which cards it runs")
            continue
        denied, said = _judged(engine, words, cards, policy)
        (denials if denied else warnings).extend(f"{where}: {one}" for one in said)
    if denials:
        return Decision(allowed=False, message="; ".join(denials), warnings=tuple(warnings))
    return Decision(allowed=True, warnings=tuple(warnings))


def _judged(engine: str, words: list[str], cards: tuple[str, ...], policy: Policy) -> tuple[bool, list[str]]:
    """(denied, what is said) of one engine on the best of ``cards``."""
    refusals: list[str] = []
    for card in cards:
        try:
            answer = _answer(engine, words, card, policy)
        except InputError as error:
            refusals.append(f"not judged on {shorten(card)}: {with_flags(error)}")
            continue
        if answer.fits or answer.verdict.probability < policy.deny_from:
            return False, _doubts(answer, card)
        refusals.append(_refusal(answer, card))
    unknown = any(one.startswith("not judged") for one in refusals)
    return (policy.unknown == "deny" if unknown else True), refusals


def _answer(engine: str, words: list[str], card: str, policy: Policy) -> Answer:
    folder = policy.models or os.environ.get("TRILEMMA_MODELS")
    options = settled(CHECK, {"models": folder})
    with fenced(*([folder] if folder else [])):
        return checked_engine(engine, words, card, options)


def _refusal(answer: Answer, card: str) -> str:
    remedy = next((f"; {one.change} would start: {one.flags}" for one in answer.remedies or ()), "")
    chance = answer.verdict.probability
    sure = "over 99 %" if chance > 0.99 else f"{chance:.0%}"
    return f"does not start on {shorten(card)} ({sure} sure): {answer.reason}{remedy}"


def _doubts(answer: Answer, card: str) -> list[str]:
    """What is worth a warning though it is allowed."""
    if answer.fits:
        return []
    return [f"may not start on {shorten(card)} ({answer.verdict.probability:.0%}): {answer.reason}"]
