"""Every plan of a search as one table: memory from the engine, speed from timing, a row per layout and load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.plans import Layout
from trilemma.search.aggregated import aggregated_rows
from trilemma.search.disaggregated import disaggregated_rows
from trilemma.search.question import (
    COUNTS,
    DEGREES,
    FIGURES,
    PREFILL_DEGREES,
    FormatChoice,
    LayoutSpace,
    PlanColumns,
    PlanTally,
    SearchQuestion,
    start_engines,
)
from trilemma.search.targets import Margin

_MARGINS = ("ttft_margin", "tpot_margin")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTable:
    """Plans that fit, one row each, over all choices.

    ``choice`` indexes ``choices`` and the cache formats in force, ``kv_formats``. ``replicas`` engines of ``layout`` serve, or
    decode where ``prefill_replicas`` of ``prefill`` are not none; they take ``gpus``. ``requests`` are in flight in all,
    ``used`` is the share of the card's memory taken (where loads are tried, by engines that are told no limit of sequences),
    ``per_gpu`` counts every GPU that is there. ``held_ttft_s`` is the time to the first token as it is held against a target: see
    `Margin.unsteady`. ``limit`` of sequences is what an attention
    replica is told, 0 where its own default is enough.
    """

    choices: tuple[FormatChoice, ...]
    kv_formats: tuple[str, ...]
    choice: NDArray[np.int64]
    layout: Layout
    replicas: NDArray[np.int64]
    prefill: Layout
    prefill_replicas: NDArray[np.int64]
    gpus: NDArray[np.int64]
    requests: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    held_ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    per_gpu: NDArray[np.float64]
    per_user: NDArray[np.float64]
    limit: NDArray[np.float64]
    used: NDArray[np.float64]
    ttft_margin: NDArray[np.float64]
    tpot_margin: NDArray[np.float64]
    confidence: float | None
    tally: PlanTally

    def __len__(self) -> int:
        return len(self.choice)

    @property
    def margin(self) -> Margin:
        """The margin of each row."""
        return Margin(ttft=self.ttft_margin, tpot=self.tpot_margin, confidence=self.confidence)


def plan_table(choices: Sequence[FormatChoice], space: LayoutSpace, question: SearchQuestion) -> PlanTable:
    """Run every choice over all layouts and loads of ``space``.

    A choice that the engine refuses is counted with the engine's own words; where it refuses all, `InputError` tells why.
    """
    parts: list[PlanColumns] = []
    refusals: list[InputError] = []
    tally = PlanTally()
    formats = [""] * len(choices)
    named = {name: one for name, one in (("whole", space.whole), ("parts", space.parts)) if one is not None}
    for at, choice in enumerate(choices):
        try:
            starts = dict(zip(named, start_engines(choice, list(named.values()), question), strict=True))
        except InputError as error:
            plans = sum(one.legal for one in named.values())
            tally.lawful(plans)
            tally.lost(f"{choice.precision.name}, KV {choice.kv_dtype}: {error}", plans)
            refusals.append(error)
            continue
        formats[at] = next(iter(starts.values())).kv_format
        same = (other for other in range(at) if replace(choices[other], kv_dtype=choice.kv_dtype) == choice)
        if formats[at] in (formats[other] for other in same):
            continue
        rows = []
        if question.pools != "disaggregated":
            name = "parts" if space.whole is None else "whole"
            asked = question.of(choice, apart=False)
            rows.append(_told(aggregated_rows(choice, starts[name], named[name], asked, tally), asked, at))
        if question.pools != "aggregated" and space.parts is not None:
            asked = question.of(choice, apart=True)
            rows.append(_told(disaggregated_rows(choice, starts["parts"], space.parts, asked, tally), asked, at))
        parts += rows
    if refusals and not parts:
        raise refusals[0]
    columns = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0)
        for name in ("choice", *COUNTS, *FIGURES, *_MARGINS)
    }
    whole = {name: columns.pop(name).astype(np.int64) for name in ("choice", *COUNTS)}
    return PlanTable(
        choices=tuple(choices),
        kv_formats=tuple(formats),
        layout=Layout(**{name: whole[name] for name in DEGREES}),
        prefill=Layout(**{name.removeprefix("prefill_"): whole[name] for name in PREFILL_DEGREES}),
        choice=whole["choice"],
        replicas=whole["replicas"],
        prefill_replicas=whole["prefill_replicas"],
        gpus=whole["gpus"],
        **columns,
        confidence=question.confidence,
        tally=tally,
    )


def _told(columns: PlanColumns, asked: SearchQuestion, choice: int) -> PlanColumns:
    """``columns`` with the index of their choice and their margins."""
    count = len(columns["tp"])
    margins = {name: np.full(count, getattr(asked.margin, name.removesuffix("_margin"))) for name in _MARGINS}
    return {**columns, **margins, "choice": np.full(count, choice, dtype=np.int64)}
