"""Traffic from what was stated: a trace, cut and scaled, or arrivals and lengths that are drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.simulation.serving.adapter_traffic import AdapterMix, with_adapter_names
from trilemma.simulation.serving.conversations import Conversations, SessionsInOrder, seconds_of, users_of
from trilemma.simulation.serving.drawn import ArrivalProcess, LengthDistribution, drawn
from trilemma.simulation.serving.traces import read_trace
from trilemma.simulation.serving.traffic import Arrival, Traffic

#: Requests that are drawn where nothing says how many, and most of a file of lengths that are held.
DRAWN_REQUESTS, _MOST_LENGTHS = 1000, 1_000_000
#: Requests by which the lengths of a trace are judged before it runs.
_TYPICAL = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedTraffic:
    """Traffic that can be run again: ``again`` makes it anew; ``words`` say it, ``requests`` and their ``mean_tokens`` where they
    are known."""

    again: Callable[[], Traffic]
    words: str
    requests: int | None
    mean_tokens: float | None = None
    has_adapters: bool = False

    def first(self) -> list[Arrival]:
        """Its first requests, by which the rest is judged."""
        return list(itertools.islice(self.again(), _TYPICAL))

    def for_adapters(self, mix: AdapterMix | None, seed: int) -> StatedTraffic:
        """The same requests for the adapters that they name, or that ``mix`` draws for those that name none."""
        words = self.words if mix is None else f"{self.words}, {mix.words} adapters"
        return replace(
            self, again=lambda: with_adapter_names(self.again(), mix, seed), words=words, has_adapters=True
        )  # fmt: skip

    def typical_tokens(self) -> float:
        """Mean tokens, prompt and output, as stated or of the first requests."""
        if self.mean_tokens is not None:
            return self.mean_tokens
        sizes = [one.isl + one.osl for one in self.first()]
        return sum(sizes) / max(len(sizes), 1)


def stated_traffic(
    *, trace: Any, arrivals: str | None, isl: Any, osl: Any, lengths: Any, requests: int | None, seed: int,
    scale_rate: float, begin_s: float, span_s: float | None, turns: Any = None, think: Any = None,
    sessions_in_order: bool = False,
) -> StatedTraffic:  # fmt: skip
    """The traffic that options state. Raises `InputError` where none or two are stated."""
    if (trace is None) == (arrivals is None):
        stated = "`trace` and `arrivals` both state the traffic" if trace is not None else "no traffic is stated"
        raise InputError(f"{stated}; give `trace` FILE or `arrivals`, such as `arrivals` poisson:4")
    if trace is not None:
        if turns is not None or think is not None:
            raise InputError(
                "`turns` and `think` are of traffic that is drawn; a trace states its sessions (`sessions_in_order`)"
            )
        return _replayed(Path(str(trace)), requests, scale_rate, begin_s, span_s, in_order=sessions_in_order)
    assert arrivals is not None
    if think is not None and turns is None and not arrivals.startswith("users:"):
        raise InputError("`think` is a pause before the next turn; give `turns`, or `arrivals` users:N, with it")
    talks = turns is not None or think is not None or arrivals.startswith("users:")
    if talks:
        _check_lengths(isl, osl)
        return _conversations(
            arrivals,
            isl,
            osl,
            "1" if turns is None else str(turns),
            "0" if think is None else str(think),
            requests or DRAWN_REQUESTS,
            seed,
        )
    process, many = ArrivalProcess.parse(arrivals), requests or DRAWN_REQUESTS
    if lengths is not None:
        return _of_lengths(process, Path(str(lengths)), many, seed)
    _check_lengths(isl, osl)
    prompts, outputs = LengthDistribution.parse(isl, "isl"), LengthDistribution.parse(osl, "osl")
    return StatedTraffic(
        again=lambda: Traffic(drawn(process, prompts, outputs, requests=many, seed=seed)),
        words=f"{process.words}, prompts {prompts.words}, outputs {outputs.words}, seed {seed}",
        requests=many,
    )


def _check_lengths(isl: Any, osl: Any) -> None:
    for name, value in (("isl", isl), ("osl", osl)):
        if value is None:
            raise InputError(
                f"`{name}` is missing; give a length such as 1024 or lognormal:1024:0.8, or a file of `lengths`"
            )


def _conversations(arrivals: str, isl: Any, osl: Any, turns: str, think: str, many: int, seed: int) -> StatedTraffic:
    """Users or conversations: what follows an answer waits for it."""
    users = users_of(arrivals) if arrivals.startswith("users:") else 0
    process = None if users else ArrivalProcess.parse(arrivals)
    prompts, outputs = LengthDistribution.parse(isl, "isl"), LengthDistribution.parse(osl, "osl")
    length, pause = LengthDistribution.parse(turns, "turns"), seconds_of(think)

    def again() -> Traffic:
        talk = Conversations(
            isl=prompts, osl=outputs, turns=length, think=pause, left=many, users=bool(users), seed=seed
        )
        if process is None:
            return Traffic(talk.openings(itertools.repeat(0.0, users)), talk.follow)
        fixed = LengthDistribution.parse(1, "isl")
        times = (one.arrival_s for one in drawn(process, fixed, fixed, requests=many, seed=seed))
        return Traffic(talk.openings(times), talk.follow)

    grown = 1 + (length.mean - 1) / 2
    turns_word = "turn" if length.words == "1" else "turns"
    return StatedTraffic(
        again=again, requests=many, mean_tokens=(prompts.mean + outputs.mean) * grown,
        words=f"{arrivals}, {length.words} {turns_word}, {pause.words} s between, prompts {prompts.words}, outputs"
        f" {outputs.words}, seed {seed}",
    )  # fmt: skip


def _replayed(
    path: Path, most: int | None, scale: float, begin_s: float, span_s: float | None, *, in_order: bool
) -> StatedTraffic:
    if not 1e-6 <= scale <= 1e6:
        raise InputError(f"`scale_rate` {scale} is out of range; give a number above 0 such as 2")
    if begin_s < 0 or (span_s is not None and span_s <= 0):
        raise InputError("`begin` counts from 0 and `span` is above 0; give seconds")

    def again() -> Traffic:
        found = read_trace(path, most=most, begin_s=begin_s, span_s=math.inf if span_s is None else span_s)
        found = found if scale == 1 else (one._replace(arrival_s=one.arrival_s / scale) for one in found)
        if not in_order:
            return Traffic(found)
        ordered = SessionsInOrder(found)
        return Traffic(ordered.free(), ordered.follow)

    cut = f", from {begin_s:g} s" if begin_s else ""
    cut += f", {span_s:g} s of it" if span_s is not None else ""
    cut += f", {scale:g} times as fast" if scale != 1 else ""
    cut += ", turns after their answers" if in_order else ""
    return StatedTraffic(again=again, words=f"trace {shorten(path.name)}{cut}", requests=most)


def _of_lengths(process: ArrivalProcess, path: Path, many: int, seed: int) -> StatedTraffic:
    """Arrivals that are drawn, of requests whose lengths are drawn in pairs from a trace."""
    known = [(one.isl, one.osl) for one in itertools.islice(read_trace(path), _MOST_LENGTHS)]

    def requests() -> Iterator[Arrival]:
        fixed = LengthDistribution.parse(1, "isl")
        places = np.random.default_rng([seed, 3]).integers(0, len(known), many).tolist()
        times = drawn(process, fixed, fixed, requests=many, seed=seed)
        for one, place in zip(times, places, strict=True):
            yield one._replace(isl=known[place][0], osl=known[place][1])

    return StatedTraffic(
        again=lambda: Traffic(requests()),
        words=f"{process.words}, lengths of {shorten(path.name)}, seed {seed}",
        requests=many,
    )
