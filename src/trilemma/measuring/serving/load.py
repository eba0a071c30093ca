"""Traffic against a server: so many at once, or as they arrive, until all were answered, time is up or the server is gone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trilemma.errors import InputError
from trilemma.measuring.serving.stream import Answered, Endpoint, ask, get_json
from trilemma.simulation.serving.traffic import Arrival

#: Words that most vocabularies hold as one token each, so that a prompt's length is near from the first request on.
_WORDS = (
    "time", "people", "water", "world", "house", "school", "family", "story", "money", "night", "place", "work",
    "point", "home", "book", "group", "problem", "fact", "month", "right", "study", "area", "company", "room", "state",
    "power", "hour", "game", "line", "end", "member", "law", "car", "city", "name", "team", "minute", "idea", "body",
    "back", "parent", "face", "level", "door", "person", "art", "war", "history", "party", "result", "change",
    "morning", "reason", "research", "girl", "guy", "moment", "air", "teacher", "force",
)  # fmt: skip
#: Failures one after the other, none answered between them, after which the server is taken for gone.
_GONE_AFTER = 8
#: Users of a closed loop begin so far apart at most.
_APART_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadAsked:
    """What is sent: ``arrivals`` in order, ``at_once`` of them in flight (closed loop), or each when it arrives (None).

    ``stall_s`` is how long a server may say nothing, ``most_s`` when all ends, ``seed`` what prompts are made from.
    """

    arrivals: Sequence[Arrival]
    at_once: int | None
    stall_s: float = 60.0
    most_s: float = 3600.0
    seed: int = 0
    warm_up: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadRun:
    """What came of it: every request that was sent, when the first was due, why it ended early ("" where it did not)."""

    answered: tuple[Answered, ...]
    started_s: float
    ended_s: float
    ended_early: str
    model: str


def run_load(
    endpoint: Endpoint, asked: LoadAsked, *, alive: Callable[[], bool] = lambda: True,
    progress: Callable[[int, int, str], None] | None = None,
) -> LoadRun:  # fmt: skip
    """Drive the server. ``alive`` says whether its process is still there. Raises `InputError` where nothing answers at all."""
    return asyncio.run(_run(endpoint, asked, alive, progress))


async def _run(
    endpoint: Endpoint, asked: LoadAsked, alive: Callable[[], bool], progress: Callable[[int, int, str], None] | None
) -> LoadRun:
    endpoint = await _named(endpoint, asked.stall_s)
    plain, words, stays_s = await _warmed(endpoint, asked, alive)
    driver = _Driver(
        endpoint=endpoint,
        asked=asked,
        alive=alive,
        plain=plain,
        words_a_token=words,
        apart_s=stays_s,
        progress=progress,
    )
    started = time.perf_counter()
    why = await driver.drive(started)
    return LoadRun(
        answered=tuple(driver.answered),
        started_s=started,
        ended_s=time.perf_counter(),
        ended_early=why,
        model=endpoint.model,
    )


async def _named(endpoint: Endpoint, stall_s: float) -> Endpoint:
    """The endpoint with the name that the server gives its model, where none was stated."""
    if endpoint.model:
        return endpoint
    told = await get_json(endpoint, f"{endpoint.base}/v1/models", stall_s=min(stall_s, 10.0))
    try:
        name = str(told["data"][0]["id"])[:300]
    except (TypeError, KeyError, IndexError):
        name = "default"
    return replace(endpoint, model=name)


async def _warmed(endpoint: Endpoint, asked: LoadAsked, alive: Callable[[], bool]) -> tuple[bool, float, float]:
    """(whether the server wants plain requests, words that make a token, seconds of a request) by requests that do not count."""
    first = asked.arrivals[0]
    failures = []
    for plain in (False, True):
        one = Answered(due_s=0.0, asked_input=first.isl, asked_output=min(first.osl, 16))
        words = max(first.isl, 1)
        await ask(endpoint, one, prompt_of(words, random.Random(asked.seed)), stall_s=asked.stall_s, plain=plain)
        if not one.failure:
            for _ in range(asked.warm_up - 1):
                more = Answered(due_s=0.0, asked_input=first.isl, asked_output=min(first.osl, 16))
                await ask(
                    endpoint, more, prompt_of(words, random.Random(asked.seed + 1)), stall_s=asked.stall_s, plain=plain
                )
            return plain, words / one.input_tokens if one.input_tokens else 1.0, one.end_s - one.sent_s
        failures.append(one.failure)
        if not one.failure.startswith("status 4"):
            break
    gone = "" if alive() else "; its process has ended"
    where = f"http{'s' * endpoint.secure}://{endpoint.host}:{endpoint.port}{endpoint.path}"
    raise InputError(
        f"{where} does not answer a request ({failures[-1]}{gone}); check --url, --endpoint and --served-model"
    )


def prompt_of(words: int, source: random.Random) -> str:
    """``words`` words in an order of their own, so that no prefix is in a cache."""
    return " ".join(source.choices(_WORDS, k=max(words, 1)))


class _Driver:
    """Sends requests and keeps what came."""

    def __init__(
        self, *, endpoint: Endpoint, asked: LoadAsked, alive: Callable[[], bool], plain: bool, words_a_token: float,
        apart_s: float, progress: Callable[[int, int, str], None] | None,
    ) -> None:  # fmt: skip
        self.endpoint, self.asked, self.alive, self.plain = endpoint, asked, alive, plain
        self.words_a_token, self.apart_s, self.progress = words_a_token, apart_s, progress
        self.answered: list[Answered] = []
        self._failed_in_a_row = 0

    async def drive(self, started: float) -> str:
        """Until all is answered; why it ended early."""
        work = self._closed() if self.asked.at_once is not None else self._open(started)
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=0.2)
                if not self.alive() and not task.done():
                    return await self._stop(task, "the server's process ended")
                if self._failed_in_a_row >= _GONE_AFTER:
                    return await self._stop(task, f"{self._failed_in_a_row} requests in a row failed")
                if time.perf_counter() - started > self.asked.most_s:
                    return await self._stop(task, f"time is up ({self.asked.most_s:g} s)")
            task.result()
            return ""
        finally:
            task.cancel()

    async def _stop(self, task: asyncio.Future[None], why: str) -> str:
        task.cancel()
        await asyncio.wait([task], timeout=1.0)
        for one in self.answered:
            one.failure = one.failure or ("" if one.end_s and one.pieces_s else "unanswered")
            one.end_s = one.end_s or time.perf_counter()
        return why

    async def _closed(self) -> None:
        waiting = iter(enumerate(self.asked.arrivals))

        at_once = min(self.asked.at_once or 1, len(self.asked.arrivals))

        async def user(number: int) -> None:
            # users who begin together stay in step, and every prompt meets all others
            await asyncio.sleep(number * min(self.apart_s / at_once, _APART_S))
            for at, arrival in waiting:
                await self._one(at, arrival, time.perf_counter())

        await asyncio.gather(*(user(number) for number in range(at_once)))

    async def _open(self, started: float) -> None:
        sent = []
        for at, arrival in enumerate(self.asked.arrivals):
            due = started + arrival.arrival_s
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            sent.append(asyncio.ensure_future(self._one(at, arrival, due)))
        await asyncio.gather(*sent)

    async def _one(self, at: int, arrival: Arrival, due: float) -> None:
        one = Answered(due_s=due, asked_input=arrival.isl, asked_output=arrival.osl)
        self.answered.append(one)
        words = max(round(arrival.isl * self.words_a_token), 1)
        prompt = prompt_of(words, random.Random(f"{self.asked.seed} {at}"))
        await ask(self.endpoint, one, prompt, stall_s=self.asked.stall_s, plain=self.plain)
        self._failed_in_a_row = self._failed_in_a_row + 1 if one.failure else 0
        if one.failure:
            await asyncio.sleep(0.05)
        if self.progress is not None:
            self.progress(len(self.answered), len(self.asked.arrivals), "requests")
