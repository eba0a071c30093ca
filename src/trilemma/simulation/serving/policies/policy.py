"""The protocol of a scheduler: whom it admits, which chunks the next step prefills, and whom it throws out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trilemma.simulation.serving.traffic import ServedRequest

if TYPE_CHECKING:
    from trilemma.simulation.serving.replica import EngineReplica

#: What a step prefills: a request and how many tokens of its prompt.
Chunks = list[tuple[ServedRequest, int]]


class SchedulingPolicy(Protocol):
    """How one engine composes a step.

    ``reserves``: a request is given the blocks of its whole length when it is admitted, and never thrown out. ``decodes_along``:
    sequences decode in a step that prefills.
    """

    @property
    def reserves(self) -> bool: ...

    @property
    def decodes_along(self) -> bool: ...

    def compose(self, engine: EngineReplica) -> Chunks:
        """Admit what may enter and name the chunks of the next step; where the cache is full, throw out so that all that
        decode can go on."""
        ...
