"""Rows of prefill and decode in pools of their own: how a row lays both out, and what timing says of them.

Nothing is fitted to such rows; a fit passes them by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import Model
from trilemma.models.identity import ByIdentity
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import Array
from trilemma.timing.intervals import pools_spread
from trilemma.timing.machine import Machine
from trilemma.timing.operators import model_work
from trilemma.timing.pools import Pools
from trilemma.timing.serving_terms import ServingTerms

if TYPE_CHECKING:
    from trilemma.measured.serving.speed.question import SpeedQuestion

_WORDS = ("mode=disagg", "PD-disaggregated", "disaggregated: prefill")
#: ``prefill 2 workers x tp1 ep1 dp_attention=true (16 GPUs)``: the cards are of all workers.
_WORKERS = re.compile(
    r"(prefill|decode) (\d{1,4}) workers x tp(\d{1,4}) ep(\d{1,4}) dp_attention=(true|false) \((\d{1,5}) GPUs\)"
)
#: ``P:1x(tp8 dp1 ep1) D:2x(tp1 dp4 ep4)``
_SHORT = re.compile(
    r"P:(\d{1,4})x\(tp(\d{1,4}) dp(\d{1,4}) ep(\d{1,4})\) D:(\d{1,4})x\(tp(\d{1,4}) dp(\d{1,4}) ep(\d{1,4})\)"
)
#: The longest request of a run over its mean one: lengths are drawn from 80 to 100 % (RANDOM_RANGE_RATIO of InferenceX).
_LONGEST_OVER_MEAN = 1 / 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolLayout:
    """``prefill_workers`` engines of ``prefill`` and ``decode_workers`` of ``decode``; ``routed``: the least ranks of attention
    from which tokens go to the ranks of their experts alone, ``rounds``: prompts of the run for each request in flight,
    ``memory_fraction``: what engines of decode were told to take of their cards."""

    prefill: Layout
    prefill_workers: int
    decode: Layout
    decode_workers: int
    routed: float = np.inf
    rounds: float = np.inf
    memory_fraction: float | None = None

    @property
    def gpus(self) -> int:
        return int(self.prefill.gpus) * self.prefill_workers + self.decode_gpus

    @property
    def decode_gpus(self) -> int:
        return int(self.decode.gpus) * self.decode_workers


def of_pools(row: Row) -> bool:
    """Whether a row says that prefill and decode ran apart."""
    notes = row.text("notes")[:2000]
    return any(words in notes for words in _WORDS)


def pools_of(row: Row, engine: str, accelerator: Accelerator, assumed: list[str]) -> PoolLayout:
    """How the row lays its pools out. Raises `UnusableRow` where it does not say."""
    notes = row.text("notes")[:2000]
    found = {words[0]: words for words in (match.groups() for match in _WORKERS.finditer(notes))}
    if {"prefill", "decode"} <= set(found):
        pools = [_stated(*found[role][1:]) for role in ("prefill", "decode")]
    elif short := _SHORT.search(notes):
        counts = [int(one) for one in short.groups()]
        pools = [(counts[at], _layout(*counts[at + 1 : at + 4])) for at in (0, 4)]
    else:
        raise UnusableRow("prefill and decode run apart, in pools that the row does not lay out")
    (prefill_workers, prefill), (decode_workers, decode) = pools
    layout = PoolLayout(prefill=prefill, prefill_workers=prefill_workers, decode=decode, decode_workers=decode_workers)
    return _as_launched(row, layout, engine, accelerator, assumed)


def _stated(workers: str, tp: str, ep: str, alone: str, gpus: str) -> tuple[int, Layout]:
    many, cards = int(workers), int(gpus)
    if many < 1 or cards < 1 or cards % many:
        raise UnusableRow(f"{cards} GPUs are not a multiple of {many} workers")
    each = cards // many
    if alone == "true":
        return many, _layout(1, each, each)
    return many, _layout(each, 1, int(ep) if int(tp) == each else 1)


def _layout(tp: int, dp: int, ep: int) -> Layout:
    if tp < 1 or dp < 1:
        raise UnusableRow(f"tp {tp} and dp {dp} are no layout; give numbers from 1")
    ranks = tp * dp
    return Layout(tp=tp, dp=dp, ep=ranks if dp > 1 else min(max(ep, 1), ranks))


def _as_launched(row: Row, layout: PoolLayout, engine: str, accelerator: Accelerator, assumed: list[str]) -> PoolLayout:
    """``layout`` as the scripts behind the row set it, where its columns do not say or say otherwise."""
    for script in read_data("validation/launch_scripts.toml")["pools"]:
        cards = script.get("accelerators", (accelerator.id,))
        if engine not in script["engines"] or accelerator.id not in cards or script["notes"] not in row.text("notes"):
            continue
        small = int(layout.decode.gpus) <= script.get("tensor_parallel_up_to", 0)
        if small and int(layout.decode.dp) * int(layout.prefill.dp) > 1:
            ranks = [int(one.gpus) for one in (layout.prefill, layout.decode)]
            layout = replace(layout, prefill=Layout(tp=ranks[0]), decode=Layout(tp=ranks[1]))
        if small:
            layout = replace(layout, memory_fraction=script["memory_fraction"])
            assumed.append(f"tensor parallel in both pools: {script['source']}")
        layout = replace(
            layout, routed=script.get("routed_from", layout.routed), rounds=script.get("rounds", layout.rounds)
        )
    return layout


def measured_per_gpu(row: Row, layout: PoolLayout, measured: float, assumed: list[str]) -> float:
    """A rate for each card of both pools, where the publisher divides by those of decode."""
    for script in read_data("validation/launch_scripts.toml")["pools"]:
        if script.get("divides_by") == "decode" and script["notes"] in row.text("notes"):
            assumed.append(
                f"output for each decode card is for each card of both pools here: {script['divides_source']}"
            )
            return measured * layout.decode_gpus / layout.gpus
    return measured


def pool_predictions(questions: Sequence[SpeedQuestion | str], terms: ServingTerms | None) -> tuple[Array, Array]:
    """((rows,), (rows, 2)): what timing says of each row of pools, in seconds or tokens a second, and the factors of its bounds;
    nan for other rows."""
    from trilemma.measured.serving.speed.benches import quantity_of

    found, bounds = np.full(len(questions), np.nan), np.full((len(questions), 2), np.nan)
    answered: dict[Any, Mapping[str, float]] = {}
    for at, question in enumerate(questions):
        if isinstance(question, str) or question.pools is None:
            continue
        key = (
            id(question.model),
            question.accelerator.id,
            question.engine,
            question.pools,
            question.isl,
            question.osl,
            *question.load,
        )
        if key not in answered:
            answered[key] = _predicted(question, terms)
        quantity = quantity_of(question)
        found[at] = answered[key].get(quantity, np.nan)
        machine = _machine(question, terms, routed=False)
        bounds[at] = pools_spread(machine, question.model).get(quantity, (np.nan, np.nan))
    return found, bounds


def _machine(question: SpeedQuestion, terms: ServingTerms | None, *, routed: bool) -> Machine:
    assert question.pools is not None
    work = model_work(question.model, question.accelerator)
    machine = Machine.serving(
        Cluster.of(question.accelerator, question.pools.gpus), work=work, engine=question.engine, terms=terms,
        routes_tokens=routed,
    )  # fmt: skip
    # all requests in flight come at once and wait for half of the others; in later rounds they come one by one
    return machine.with_coefficients(machine.coefficients.with_numbers(queue_share=0.5 / question.pools.rounds))


def _predicted(question: SpeedQuestion, terms: ServingTerms | None) -> Mapping[str, float]:
    from trilemma.measured.serving.speed.benches import kv_format_of

    layout = question.pools
    assert layout is not None
    model, card = ByIdentity(question.model), ByIdentity(question.accelerator)
    kv_format = kv_format_of(question.model)
    decode, prefill = (
        _machine(question, terms, routed=int(one.dp) >= layout.routed) for one in (layout.decode, layout.prefill)
    )
    pools = Pools(
        work=model_work(question.model, question.accelerator), machine=decode, prefill_machine=prefill,
        prefill=layout.prefill, decode=layout.decode, prefill_workers=layout.prefill_workers,
        decode_workers=layout.decode_workers, isl=question.isl, osl=question.osl, kv_format=kv_format,
        slots=_slots(model, card, layout, question.engine, _lengths(question), kv_format.name),
    )  # fmt: skip
    in_flight = question.concurrency if question.rate is None else None
    found = pools.speed(concurrency=in_flight, rate=question.rate)
    serving = found.serving
    run_share = _run_share(layout.rounds, float(np.asarray(found.flow.prefill_busy))) if question.rate is None else 1.0
    return {
        "ttft": float(serving.ttft_s), "tpot": float(serving.tpot_s),
        "output": float(serving.output_tokens_per_s) * run_share,
    }  # fmt: skip


def _run_share(rounds: float, busy: float) -> float:
    """Tokens a second of a whole run over those of its steady state: while the last requests end, others no longer follow.

    Requests start as prefill lets them through, so their ends are spread over the share of a turn that prefill is ``busy``, and
    the longest lasts longer than the mean: the last ends so much of a turn after the mean one.
    """
    return 1.0 / (1.0 + (busy / 2 + _LONGEST_OVER_MEAN - 1) / rounds)


def _lengths(question: SpeedQuestion) -> tuple[int, int]:
    return max(int(question.isl + question.osl / 2), 1), max(int(question.isl + question.osl), 1)


@lru_cache(maxsize=1024)
def _slots(
    same_model: ByIdentity, same_card: ByIdentity, layout: PoolLayout, engine: str, lengths: tuple[int, int],
    kv_format: str,
) -> float:  # fmt: skip
    """Requests that one attention replica of decode holds in the mean, by its engine's memory rules; a load that was run is not
    refused for want of room."""
    from trilemma import engines

    model, accelerator = same_model.value, same_card.value
    assert isinstance(model, Model)
    assert isinstance(accelerator, Accelerator)
    mean, longest = lengths
    narrow = engines.traits_of(engine).narrow_cache
    options = ServeOptions(
        context=longest, memory_fraction=layout.memory_fraction, kv_dtype="auto" if kv_format == "bf16" else narrow
    )
    try:
        start = engines.get(engine).start_up(
            model=model, accelerator=accelerator, layout=layout.decode, options=options
        )
    except InputError:
        return np.inf
    held = float(np.asarray(start.pool.tokens)) / mean
    return held if held >= 1 else np.inf
