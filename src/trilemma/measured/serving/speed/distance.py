"""How far the rows of a table lie from those that their terms were fitted to; see `trilemma.timing.distance`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from trilemma.measured.serving.speed.figures import SpeedFigures
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.timing.distance import Seen, shape_of

Run = tuple[str, str, str, str]


def run_of(bench: SpeedFigures, question: SpeedQuestion) -> Run:
    """Engine, card, precision and shape of the model: what a fit sees of a row."""
    return bench.engine, bench.machine.accelerator.id, bench.precision, shape_of(question.model)


def runs_of(benches: Sequence[SpeedFigures], questions: Sequence[SpeedQuestion | str]) -> dict[int, Run]:
    """Row → what a fit sees of it."""
    found: dict[int, Run] = {}
    for bench in benches:
        for at in bench.at:
            question = questions[at]
            assert isinstance(question, SpeedQuestion)
            found[int(at)] = run_of(bench, question)
    return found


def distances(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    seen: Seen,
    groups: Sequence[Hashable] | None = None,
) -> list[str]:
    """The class of every row; with ``groups`` each row as the rows of the other groups see it, without them as ``seen`` does."""
    found = [""] * len(questions)
    runs = runs_of(benches, questions)
    held: dict[Hashable, Seen] = {}
    for at, (engine, card, precision, shape) in runs.items():
        if groups is not None and groups[at] not in held:
            held[groups[at]] = Seen.of([run for other, run in runs.items() if groups[other] != groups[at]])
        known = seen if groups is None else held[groups[at]]
        found[at] = known.distance(engine=engine, card=card, precision=precision, shape=shape)
    return found
