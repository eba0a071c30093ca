"""Measured figures of one deployment as timing answers them: the questions behind them, each once, and what terms say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Array
from trilemma.timing.admission import Admission
from trilemma.timing.bursts import of_burst, where_at_once
from trilemma.timing.coefficients import scaled
from trilemma.timing.forward_pass import decode_step, prefill_pass
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.pass_time import PassTime
from trilemma.timing.serving_step import ServingSpeed, concurrency_for_rate, serving_speed
from trilemma.timing.serving_terms import keys_of

#: Figures of a load, which one question answers together.
_OF_LOAD = ("tpot", "ttft", "output")
#: Figures in seconds; the others are rates.
TIMES = ("ttft", "tpot")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedFigures:
    """Figures of one model on one kind of card under one engine; arrays have one entry per figure.

    ``quantity`` is tpot or ttft in seconds, output, decode or prefill in tokens per second over the whole plan; ``queued``
    ones are taken with every request waiting, those with a ``rate`` (requests a second, else nan) as requests arrive. ``at``
    says where the figures stood in the table, ``trust`` what each weighs, ``passes_waited`` those that a
    prompt waits for by a script beside what the engine's default asks (None: no more), ``bursts`` whether all were sent at once,
    ``cached`` tokens lie before bare prompts (None: none), ``factors`` what the release, its age and the backend multiply terms
    by, ``told`` are numbers of the machine that flags of the rows set, by name.
    """

    work: ModelWork
    machine: Machine
    engine: str
    precision: str
    kv_format: Format
    layout: Layout
    isl: Array
    osl: Array
    concurrency: Array
    rate: Array
    admission: Admission
    queued: Any
    quantity: Any
    measured: Array
    at: Any
    trust: Array
    passes_waited: Array | None = None
    bursts: Any = None
    cached: Array | None = None
    factors: Mapping[str, Array] = field(default_factory=dict)
    told: Mapping[str, Array] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key at each of `LEVELS`."""
        return keys_of(self.engine, self.machine.accelerator, self.precision)

    def take(self, chosen: Any) -> SpeedFigures:
        """The figures at ``chosen`` (indices or a mask)."""
        degrees = {name: np.asarray(getattr(self.layout, name))[chosen] for name in ("tp", "pp", "dp", "ep")}
        arrays = ("isl", "osl", "concurrency", "rate", "queued", "quantity", "measured", "at", "trust")
        return SpeedFigures(
            work=self.work, machine=self.machine, engine=self.engine, precision=self.precision,
            kv_format=self.kv_format, layout=Layout(**degrees),
            admission=self.admission.take(chosen),
            passes_waited=None if self.passes_waited is None else self.passes_waited[chosen],
            bursts=None if self.bursts is None else self.bursts[chosen],
            cached=None if self.cached is None else self.cached[chosen],
            factors={term: values[chosen] for term, values in self.factors.items()},
            told={name: values[chosen] for name, values in self.told.items()},
            **{name: getattr(self, name)[chosen] for name in arrays},
        )  # fmt: skip


def predict(bench: SpeedFigures, factors: Mapping[str, Any]) -> Any:
    """What each figure of ``bench`` should be, under multipliers that broadcast against its figures."""
    out = np.zeros(np.broadcast_shapes(bench.measured.shape, *(np.shape(factor) for factor in factors.values())))
    kinds = kinds_of(bench)
    for kind in dict.fromkeys(kinds.tolist()):
        answer, chosen = _WAYS[kind], kinds == kind
        part = bench.take(chosen)
        out[..., chosen] = answer(part, under(part, factors))
    return out


def kinds_of(bench: SpeedFigures) -> Any:
    """Which way through timing each figure takes: that of a load, of arrivals at a rate, or of one bare phase."""
    load = np.where(np.isfinite(bench.rate), "arrivals", "load")
    return np.where(np.isin(bench.quantity, _OF_LOAD), load, bench.quantity)


def under(bench: SpeedFigures, factors: Mapping[str, Any]) -> Machine:
    """The machine of ``bench`` under ``factors`` and the age of its releases."""
    factors = {**factors, **{term: factors[term] * by for term, by in bench.factors.items() if term in factors}}
    coefficients = scaled(bench.machine.coefficients, factors)
    return bench.machine.with_coefficients(coefficients.with_numbers(**bench.told))


def _of_load(bench: SpeedFigures, machine: Machine) -> Any:
    speed = load_speed(bench, machine)
    rest = np.where(bench.quantity == "ttft", first_token_s(speed, machine), speed.output_tokens_per_s)
    return np.where(bench.quantity == "tpot", speed.tpot_s, rest)


def load_speed(bench: SpeedFigures, machine: Machine) -> ServingSpeed:
    """The speed of each figure's load on ``machine``."""
    if bench.passes_waited is not None:
        waited = machine.coefficients.steps_waited + bench.passes_waited
        machine = machine.with_coefficients(machine.coefficients.with_numbers(steps_waited=waited))
    dp = np.asarray(bench.layout.dp)
    sent_at_once = bench.bursts is not None and np.any(bench.bursts)
    if sent_at_once:
        machine = where_at_once(machine, bench.bursts)
    load: dict[str, Any] = {
        "isl": bench.isl, "osl": bench.osl, "kv_format": bench.kv_format, "admission": bench.admission, "rate": None,
    }  # fmt: skip
    offered = np.where(bench.queued, (bench.admission.holds + 1) * dp, bench.concurrency)
    if np.any(np.isfinite(bench.rate)):  # all of them: those at a rate go their own way
        load |= {"rate": bench.rate}
        offered = concurrency_for_rate(bench.work, machine, bench.layout, **load)
    speed = serving_speed(bench.work, machine, bench.layout, concurrency=offered, **load)
    return of_burst(speed, bench.bursts) if sent_at_once else speed


def first_token_s(speed: ServingSpeed, machine: Machine) -> Any:
    """The mean time to the first token as a run measures it: what compiling adds where nobody warmed the server up."""
    return speed.ttft_s + machine.coefficients.uncompiled_share * machine.coefficients.compile_s


def phase_pass(bench: SpeedFigures, machine: Machine, phase: str) -> PassTime:
    """One pass of a ``phase`` run by itself: a decode step, or all prompts to their first tokens."""
    if phase == "decode":
        running = np.maximum(bench.concurrency / np.asarray(bench.layout.dp), 1.0)
        context = bench.isl + bench.osl / 2
        return decode_step(bench.work, machine, bench.layout, batch=running, context=context, kv_format=bench.kv_format)
    prompts = bench.concurrency / np.asarray(bench.layout.dp)
    return prefill_pass(
        bench.work,
        machine,
        bench.layout,
        tokens=bench.isl,
        cached=0.0 if bench.cached is None else bench.cached,
        prompts=prompts,
        kv_format=bench.kv_format,
    )


def _decode_rate(bench: SpeedFigures, machine: Machine) -> Any:
    return bench.concurrency / phase_pass(bench, machine, "decode").total_s


def _prefill_rate(bench: SpeedFigures, machine: Machine) -> Any:
    return bench.isl * bench.concurrency / phase_pass(bench, machine, "prefill").total_s


_WAYS = {"load": _of_load, "arrivals": _of_load, "decode": _decode_rate, "prefill": _prefill_rate}


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedOnce:
    """Figures of a bench that take the same way through timing. ``asked`` are the questions behind them, each once (the figures
    of one load are answers to one question); ``of`` says which of them each figure answers."""

    figures: SpeedFigures
    asked: SpeedFigures
    of: Any

    def predict(self, factors: Mapping[str, Any]) -> Any:
        """`predict` of ``figures``."""
        if self.figures.quantity[0] not in _OF_LOAD:
            return predict(self.figures, factors)
        machine = under(self.asked, factors)
        speed = load_speed(self.asked, machine)
        answers = {"ttft": first_token_s(speed, machine), "tpot": speed.tpot_s, "output": speed.output_tokens_per_s}
        shape = np.broadcast_shapes(self.asked.measured.shape, *(np.shape(factor) for factor in factors.values()))
        wide = np.stack([np.broadcast_to(answers[name], shape) for name in _OF_LOAD])
        return np.moveaxis(wide, 0, -1)[..., self.of, [_OF_LOAD.index(name) for name in self.figures.quantity]]


def parts_of(bench: SpeedFigures) -> list[AskedOnce]:
    """``bench`` in parts, one for each way through timing."""
    kinds = kinds_of(bench)
    return [_part(bench.take(kinds == kind)) for kind in dict.fromkeys(kinds.tolist())]


def _part(figures: SpeedFigures) -> AskedOnce:
    degrees = [np.asarray(getattr(figures.layout, name)) for name in ("tp", "pp", "dp", "ep")]
    admitted = [figures.admission.half_way, figures.admission.at_full_length]
    polls = 0.0 if figures.passes_waited is None else figures.passes_waited
    loads = (figures.isl, figures.osl, figures.concurrency, figures.rate, figures.queued)
    bursts = False if figures.bursts is None else figures.bursts
    rows = tuple(one + 0.0 * figures.isl for one in (polls, bursts))
    columns = (*degrees, *loads, *rows, *figures.told.values(), *figures.factors.values(), *admitted)
    question = np.nan_to_num(np.stack([np.asarray(one, dtype=float) for one in columns], axis=1), nan=-1.0)
    _, first, of = np.unique(question, axis=0, return_index=True, return_inverse=True)
    return AskedOnce(figures=figures, asked=figures.take(first), of=of.reshape(-1))
