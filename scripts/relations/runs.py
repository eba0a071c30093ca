"""Random questions, each held to several relations."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from relations import serving, training
from relations.asking import Answers, Unasked

#: How much rarer than others a relation is tried: those that ask a search, or validate whole documents.
RARE = {
    "best plan asked again": 20, "plan and compare agree": 20, "documents follow their schema": 5,
    "training: best plan asked again": 20,
}  # fmt: skip
#: Asked of every answer, since they ask nothing more.
ALWAYS = (
    "lines sum to the byte", "low value high", "fits within the card", "probabilities are odds", "littles law",
    "no phase above the roof", "no mfu above one",
)  # fmt: skip
#: What can be said of two pools, one that prefills and one that decodes.
POOLED = (
    "lines sum to the byte", "low value high", "probabilities are odds", "littles law", "documents follow their schema",
    "more requests never fewer tokens", "longer prompts never sooner", "more bandwidth never slower",
    "wider networks never slower", "more arithmetic never slower", "lower caps never faster",
    "samplers that do more never faster",
)  # fmt: skip
RELATIONS = {**serving.RELATIONS, **{f"training: {name}": one for name, one in training.RELATIONS.items()}}
#: One question in this many is of training.
_TRAINS = 5


@dataclass
class Tally:
    """How often a relation was tried, had nothing to say, and what broke it: (question, what is wrong)."""

    tried: int = 0
    unasked: int = 0
    broken: list[tuple[str, str]] = field(default_factory=list)


def run(number: int, *, seed: int = 1, only: str | None = None, each: int = 2) -> Mapping[str, Tally]:
    """Ask ``number`` questions, variants included; ``each`` answer is held to so many relations that ask more."""
    rng, ask = random.Random(seed), Answers()
    found = {name: Tally() for name in RELATIONS}
    while ask.asked < number:
        trains = only.startswith("training") if only else rng.randrange(_TRAINS) == 0
        question = (training if trains else serving).draw(rng)
        answer = ask(question)
        if answer is None:
            continue
        mine = POOLED if "prefill" in question.options else [n for n in RELATIONS if n.startswith("training") == trains]
        cheap = [name for name in mine if name.removeprefix("training: ") in ALWAYS]
        others = [one for one in mine if one not in cheap and rng.random() < 1 / RARE.get(one, 1)]
        for name in [only] if only else (*cheap, *rng.sample(others, min(each, len(others)))):
            tally = found[name]
            try:
                wrong = RELATIONS[name](question, answer, ask)
            except Unasked:
                tally.unasked += 1
                continue
            tally.tried += 1
            if wrong is not None:
                tally.broken.append((str(question), wrong))
    return found
