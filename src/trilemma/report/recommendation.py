"""Cards recommended for a need, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from trilemma.capacity.choice import CardChoice, Recommendation, SparedFirst
from trilemma.columns import column, document_of
from trilemma.estimate.estimate import Estimate
from trilemma.hardware.price import price_words
from trilemma.intervals import Interval
from trilemma.quantities import counted
from trilemma.report.document import Rejected
from trilemma.report.plan_words import load_words, money
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped
from trilemma.workloads import Serving

_MOST_WHY = 5
#: Columns that give way where the window is narrow, the first first.
_YIELDS = ("why", "kW", "$/M tok", "weights", "recipe", "sure", "plan")
#: Columns of words.
_WORDS = ("GPUs", "plan", "weights", "recipe", "why")
_SPARED = {"price": "dollars an hour", "gpus": "GPUs", "power": "watts drawn"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenCards:
    """``count`` cards of one kind: ``watts`` that they draw under the need, ``board_watts`` their limit; dollars of an hour with
    ``electricity_usd_per_hour`` where a price of it was stated; ``days`` and ``run_usd`` of a training run of stated length."""

    gpu: str
    name: str
    count: int
    layout: str
    weights: str
    why: str
    usd_per_hour: Interval | None = field(metadata=column("usd_per_hour{}", spread=True))
    electricity_usd_per_hour: Interval | None = field(metadata=column("electricity_usd_per_hour{}", spread=True))
    watts: Interval | None = field(metadata=column("watts{}", spread=True))
    board_watts: float | None
    days: Interval | None
    run_usd: Interval | None
    command: str | None
    estimate: Estimate

    @classmethod
    def of(cls, choice: CardChoice, command: str) -> Self:
        """A choice with its estimate in full; ``command`` is what runs a training."""
        return cls(
            gpu=choice.card.id,
            name=choice.card.name,
            count=choice.gpus,
            layout=choice.estimate.summary,
            weights=choice.stored,
            why=choice.why,
            usd_per_hour=choice.usd_per_hour,
            electricity_usd_per_hour=choice.electricity,
            watts=choice.watts,
            board_watts=choice.limit_watts,
            days=choice.days,
            run_usd=choice.run_usd,
            command=command or choice.estimate.command,
            estimate=choice.estimate,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommendationDocument:
    """``trilemma/recommendation@1``: choices best first; of ``asked`` cards ``searched`` were laid out, ``left_out`` counts those
    that are no choice by why."""

    schema: Literal["trilemma/recommendation@1"] = "trilemma/recommendation@1"
    model: str
    by: SparedFirst
    asked: int
    searched: int
    seconds: float = field(metadata=column(exact=True))
    assumed: tuple[str, ...] = field(metadata=column(keep="empty"))
    left_out: tuple[Rejected, ...] = field(metadata=column(keep="empty"))
    choices: tuple[ChosenCards, ...] = field(metadata=column(keep="empty"))


def recommendation_document(answer: Recommendation, *, explain: bool = False) -> dict[str, Any]:
    """The recommendation as plain data."""
    document = RecommendationDocument(
        model=answer.model.name,
        by=answer.spared,
        asked=answer.asked,
        searched=answer.searched,
        seconds=answer.seconds,
        assumed=answer.assumed,
        left_out=tuple(Rejected(why=why, count=count) for why, count in answer.left_out.items()),
        choices=tuple(ChosenCards.of(one, answer.command(one)) for one in answer.choices),
    )
    return document_of(document, explain=explain)


def render_recommendation(answer: Recommendation, *, width: int = 120) -> str:
    """One line that says what to take, the choices as a table, how to run the first, and what the answer rests on."""
    parts = [*wrapped(_headline(answer), width)]
    if answer.choices:
        parts += [
            "",
            *_table(answer, width).splitlines(),
            "",
            *_first(answer.choices[0], answer.command(answer.choices[0])),
        ]
    parts += ["", *_notes(answer, width)]
    return "\n".join(line.rstrip() for line in parts)


def _headline(answer: Recommendation) -> str:
    need = f"{answer.model.name}: {_need(answer)}"
    if not answer.choices:
        return f"{need}: none of {counted(answer.asked, 'card')} does it within the limits"
    first = answer.choices[0]
    hour = first.usd_per_hour
    price = f", ${hour.value:,.2f} an hour ({hour.low:,.2f} – {hour.high:,.2f})" if hour is not None else ""
    return f"{need}: take {first.gpus} x {first.card.name}{price}"


def _need(answer: Recommendation) -> str:
    load = answer.workload
    if isinstance(load, Serving):
        return load_words(load)
    what = {"full": "training of all weights"}.get(load.method, f"{load.method} of rank {load.rank}")
    length = "" if load.tokens is None else f", {load.tokens / 1e9:,.4g}B tokens"
    return f"{what}, sequences of {load.seq:,} tokens, {load.global_batch:,} to a step{length}"


def _table(answer: Recommendation, width: int) -> str:
    """The choices, cards and prices the last to give way."""
    columns = [_columns(one, serving=isinstance(answer.workload, Serving)) for one in answer.choices]
    names = list(columns[0])
    align = "".join("l" if name in _WORDS else "r" for name in names)
    return render_table(names, [list(one.values()) for one in columns], align=align, width=width, yields=_YIELDS)


def _columns(choice: CardChoice, *, serving: bool) -> dict[str, str]:
    """Header → cell."""
    watts = "–" if choice.watts is None else f"{choice.watts.value / 1e3:,.2f}"
    return {
        "GPUs": f"{choice.gpus} x {choice.card.name}",
        "plan": choice.estimate.summary,
        "weights" if serving else "recipe": choice.stored,
        **(_served(choice) if serving else _trained(choice)),
        "$/h": money(choice.usd_per_hour),
        "kW": watts,
        "sure": _sure(choice.estimate.verdict.probability),
        "why": choice.why,
    }


def _served(choice: CardChoice) -> dict[str, str]:
    speed = choice.estimate.speed
    ttft = None if speed is None or speed.ttft_s is None else speed.ttft_s.interval.value
    tpot = None if speed is None or speed.tpot_s is None else speed.tpot_s.interval.value
    price = money(choice.estimate.usd_per_million_tokens)
    return {"mean TTFT": _time(ttft), "mean TPOT": _time(tpot), "$/M tok": price}


def _trained(choice: CardChoice) -> dict[str, str]:
    speed = choice.estimate.speed
    step = None if speed is None or speed.step_s is None else speed.step_s.interval.value
    told = {"step": _time(step)}
    if choice.days is not None:
        told["days"] = f"{choice.days.value:,.1f}"
    if choice.run_usd is not None:
        told["run"] = f"${choice.run_usd.value:,.0f}"
    return told


def _sure(probability: float) -> str:
    return "> 99 %" if probability > 0.99 else f"{probability:.0%}".replace("%", " %")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"


def _first(choice: CardChoice, job: str) -> Iterator[str]:
    answer = choice.estimate
    yield "run the first"
    if answer.command:
        yield f"  {answer.command}"
    for one in answer.commands:
        yield f"  {one.command}"
    if job:
        yield f"  {job}"


def _notes(answer: Recommendation, width: int) -> Iterator[str]:
    notes = list(answer.assumed)
    notes.append(
        f"{counted(answer.searched, 'card')} of {answer.asked} were laid out, in {answer.seconds:.1f} s; spared first:"
        f" {_SPARED[answer.spared]}"
    )
    shown = list(answer.left_out.items())[:_MOST_WHY]
    notes += [f"left out: {counted(count, 'card')}, {why}" for why, count in shown]
    notes += [price_words(choice.card) for choice in answer.choices[:3] if choice.card.price_source != "given"]
    notes.append(_power_note(answer.choices))
    for note in filter(None, notes):
        yield from wrapped(note, width, initial_indent="note: ", subsequent_indent="      ")


def _power_note(choices: tuple[CardChoice, ...]) -> str:
    """What the first draws, and what stands beside the watts of cards."""
    drawn, limit = (choices[0].watts, choices[0].limit_watts) if choices else (None, None)
    if drawn is None or limit is None:
        return ""
    dollars = choices[0].electricity
    paid = "" if dollars is None else f", ${dollars.value:,.2f} of the hour ({dollars.low:,.2f} – {dollars.high:,.2f})"
    return (
        f"kW are those that cards draw under this load, hosts and cooling apart: the first {drawn.value:,.0f} W"
        f" ({drawn.low:,.0f} – {drawn.high:,.0f}) of at most {limit:,.0f} W{paid}"
    )
