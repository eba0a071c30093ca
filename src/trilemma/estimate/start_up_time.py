"""How long the engines of a plan take until they answer, from their weights, where these lie, and what the engine compiles."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.intervals import Interval
from trilemma.plans import Pool
from trilemma.question import ServingQuestion
from trilemma.timing.starting import StartPhase, figure, placing_s, reading_s, starting_data, together_s
from trilemma.versions import padded, parse_version

#: Lines of the ledger that are read from files.
_READ = ("weights", "adapter", "draft_model", "vision")


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUpTime:
    """Seconds from the command to the first answer, by ``phases`` of a first start; all of them, and where the engine has
    compiled this plan ``before``. Phases that no log told of are left out, and then there is no sum; ``untold`` says why."""

    phases: tuple[StartPhase, ...]
    seconds: Interval | None = None
    before: Interval | None = None
    untold: str | None = None


def start_up_time(start: StartUp, question: ServingQuestion, pool: Pool) -> StartUpTime:
    """Of one engine of ``pool`` that starts as ``start`` says; engines of a plan start side by side."""
    per_card = sum(float(line.bytes) for line in start.ledger if line.name in _READ)
    cards = min(int(pool.layout.gpus), question.cluster.gpus_per_node)
    reading = reading_s(per_card * cards, question.cluster.storage_bytes_per_s)
    found = (StartPhase(name="read", seconds=reading), StartPhase(name="placed", seconds=placing_s(reading)))
    name = engines.canonical(question.plan.engine.name)
    logs = starting_data()["engines"].get(name)
    if logs is None:
        label = engines.traits_of(name).label
        return StartUpTime(
            phases=found, untold=f"no start-up log of {label} was read: what it does beside its weights is not told"
        )
    process, rest = (StartPhase(name=name, seconds=figure(f"{name}_s")) for name in ("process", "rest"))
    since = padded(parse_version(logs["compiles_since"]))
    if pool.options.eager or padded(parse_version(start.version)) < since:
        whole = together_s((process, *found, rest))
        return StartUpTime(phases=(process, *found, rest), seconds=whole, before=whole)
    compiling, captured = (StartPhase(name=name, seconds=figure(f"{name}_s")) for name in ("compile", "capture"))
    first = (process, *found, compiling, captured, rest)
    later = StartPhase(name="compile", seconds=figure("compiled_s"))
    again = tuple(later if one is compiling else one for one in first)
    return StartUpTime(phases=first, seconds=together_s(first), before=together_s(again))


def slower_of(times: tuple[StartUpTime, ...]) -> StartUpTime:
    """The one of engines that start side by side which is there last."""
    return max(times, key=lambda one: sum(phase.seconds.value for phase in one.phases))
