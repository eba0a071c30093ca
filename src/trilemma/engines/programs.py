"""Words and images that start an engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from trilemma.engines.training import starts_program, training_programs
from trilemma.engines.traits import every


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """How one engine is started: consecutive words, as `starts_program` compares them.

    ``launched``: the words before it matter too (``torchrun --nproc_per_node 8``), as they do for training.
    """

    engine: str
    words: tuple[str, ...]
    launched: bool = False

    def starts(self, words: Sequence[str], at: int) -> bool:
        return starts_program(words, at, self.words)


@cache
def programs() -> tuple[Program, ...]:
    """Every command that is recognised."""
    serving = (Program(engine=one.name, words=words) for one in every().values() for words in one.programs)
    training = (
        Program(engine=row["framework"], words=tuple(words), launched=True)
        for row in training_programs()
        for words in row.get("words", ())
    )
    return (*serving, *training)


def names_none(words: Sequence[str]) -> bool:
    """Whether ``words``, assignments before them passed over, start a server that is told its models by other commands."""
    at = next((at for at, word in enumerate(words) if "=" not in word), len(words))
    return any(
        tuple(words[at : at + len(one)]) == one for row in every().values() for one in row.programs_without_model
    )


def image_engine(image: str) -> str | None:
    """The engine whose server an image starts, told by its repository name; None when it tells nothing."""
    repository = re.sub(r"@sha256:.*$", "", image)
    repository = re.sub(r":[^/]*$", "", repository).lower()
    named = ((one.name, pattern) for one in every().values() for pattern in one.images)
    return next((engine for engine, pattern in named if re.search(pattern, repository)), None)


def program_at_start(words: Sequence[str]) -> int:
    """How many words at the start name a program (0: none): ``vllm serve …`` → 2, ``python -m module …`` → 3."""
    skip = 1 if words and re.fullmatch(r"python[\d.]*", PurePosixPath(words[0]).name) else 0
    for program in programs():
        if program.starts(words, skip):
            return skip + len(program.words)
    return 0
