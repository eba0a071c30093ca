"""What is told of a machine: its cards, and the models that run on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from trilemma.columns import column
from trilemma.intervals import Interval
from trilemma.machine.probes import Unseen


@dataclass(frozen=True, kw_only=True, slots=True)
class CardsHere:
    """Cards of one kind. ``id`` is absent where the catalogue has none of that name."""

    name: str
    count: int
    id: str | None = None
    memory_bytes: float | None = None
    free_bytes: float | None = None
    sliced: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsHere:
    """A model on this machine: the engine, the cards it takes, one reader's speed and the command that starts it."""

    model: str
    engine: str
    weights: str
    gpus: int
    command: str
    tokens_per_s: Interval
    max_context: int
    weights_bytes: float
    on_host: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatRuns:
    """``runs``: models that fit, the largest first; ``too_large``: those tried that do not. ``isl`` and ``osl``: the request
    whose speed is told."""

    schema: str = "trilemma/here@1"
    cards: tuple[CardsHere, ...] = field(metadata=column(keep="empty"))
    host_memory_bytes: float | None = None
    driver: str = ""
    runs: tuple[RunsHere, ...] = field(metadata=column(keep="empty"))
    too_large: tuple[str, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    isl: int = 0
    osl: int = 0
    recorded: bool = False
