"""A request on its way: what arrives, and what an engine keeps of it while it is answered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple


class Arrival(NamedTuple):
    """One request of the traffic: ``isl`` prompt and ``osl`` output tokens, ``arrival_s`` seconds after the start.

    ``stretches`` name equal parts of the prompt, ``stretch_tokens`` each, by content: what two requests both begin with is in the
    cache for the second. ``session`` names the conversation that it continues, ``tenant`` whose it is; a lower ``priority`` is
    served first where the policy looks at it; ``adapter`` is the fine-tune that answers it (None: the model itself).
    """

    arrival_s: float
    isl: int
    osl: int
    stretches: tuple[Hashable, ...] = ()
    stretch_tokens: int = 0
    session: str | None = None
    tenant: str | None = None
    priority: int = 0
    adapter: str | None = None


class ServedRequest:
    """A request in an engine. Tokens up to ``computed`` of ``target`` are prefilled; ``made`` are its output.

    While it decodes, ``made`` stands as of the tick ``joined`` at which it had ``length`` tokens, and ``last_tick`` is its
    last. ``shared`` stretches of its prompt are held by name, ``blocks`` are its own beside them, ``key`` names what it leaves
    behind. The cache of ``received`` prompt tokens came from another engine; the scheduler sees
    it from ``seen_s`` on, and its chunks run from ``loaded_s`` on, when what the host held of its prompt is back.
    It was first taken in at ``entered_s``.
    """

    __slots__ = (
        "arrival", "blocks", "computed", "deadline_s", "entered_s", "finish_s", "first_s", "index", "isl", "joined", "key",
        "last_s", "last_tick", "length", "loaded_s", "made", "osl", "preempted", "ready_s", "received", "seen_s", "shared",
        "shared_blocks", "target",
    )  # fmt: skip

    def __init__(self, index: int, arrival: Arrival, ready_s: float) -> None:
        self.index, self.arrival, self.ready_s = index, arrival, ready_s
        self.isl, self.osl, self.target = arrival.isl, arrival.osl, arrival.isl
        self.computed = self.made = self.blocks = self.shared = self.shared_blocks = self.preempted = 0
        self.received = 0
        self.joined = self.length = 0
        self.last_tick = -1
        self.first_s = self.finish_s = self.last_s = self.seen_s = self.loaded_s = self.entered_s = -1.0
        self.deadline_s = float("inf")
        # stretches are named by numbers and words: a tuple is the name of none
        self.key: Hashable = (index,) if arrival.session is None else ("session", arrival.session)

    def prefill_alone(self) -> ServedRequest:
        """It leaves its engine with the first token."""
        self.osl = 1
        return self

    def hand_over(self) -> None:
        """Its prompt is computed; it decodes in another engine, which is sent the cache."""
        self.osl, self.received = self.arrival.osl, self.isl
        self.computed = self.made = 0
        self.first_s = self.finish_s = -1.0

    def start_anew(self) -> None:
        """All that was done for it is lost."""
        self.computed = self.made = self.received = 0
        self.target, self.first_s, self.loaded_s, self.entered_s = self.isl, -1.0, -1.0, -1.0


#: What follows when a request has ended (or was refused): the next of its session or its user.
Follow = Callable[[Arrival, float], Arrival | None]


class Traffic:
    """Requests in the order of their time, and those that ``follow`` when one has ended."""

    def __init__(self, arrivals: Iterable[Arrival], follow: Follow | None = None) -> None:
        self._arrivals, self.follow = iter(arrivals), follow

    def __iter__(self) -> Iterator[Arrival]:
        return self._arrivals

    def __next__(self) -> Arrival:
        return next(self._arrivals)
