"""Serving terms fitted to measured figures: one multiplier per term, shared by all and drawn towards it level by level.

A figure's multipliers are ``exp`` of the sum of its offsets at every level of `serving_terms.LEVELS`: shared, engine, card,
(engine, card), and for products of weights also (engine, kind of memory, precision) and (engine, card, precision).
Every offset has a normal prior about zero, so that a level departs from the one above it only as far as its figures say
(ridge on log offsets). Errors are logarithmic and large ones pull less than their square (pseudo-Huber).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Array
from trilemma.timing.admission import Admission
from trilemma.timing.coefficients import scaled
from trilemma.timing.forward_pass import decode_step, prefill_pass
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.serving_step import concurrency_for_rate, serving_speed
from trilemma.timing.serving_terms import LEVELS, Priors, ServingTerms, keys_of

#: Errors beyond about this much (natural logarithm) pull less than their square.
_HUBER = 0.12
#: How far predictions are expected to be off, by kind of figure: their weight is the inverse.
_EXPECTED = {"tpot": 0.08, "ttft": 0.40, "output": 0.16, "decode": 0.08, "prefill": 0.16}
_STEP = 1e-4
_MOST_MOVE = 0.7
_MOST_OFFSET = 4.0
#: Width of a term that a level has not: so narrow that nothing moves it.
_NONE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedFigures:
    """Figures of one model on one kind of card under one engine; arrays have one entry per figure.

    ``quantity`` is tpot or ttft in seconds, output, decode or prefill in tokens per second over the whole plan; ``queued``
    ones are taken with every request waiting, those with a ``rate`` (requests a second, else nan) as requests arrive. ``at``
    says where the figures stood in the table, ``trust`` what each weighs.
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
            admission=self.admission.take(chosen), **{name: getattr(self, name)[chosen] for name in arrays},
        )  # fmt: skip


def predict(bench: SpeedFigures, factors: Mapping[str, Any]) -> Any:
    """What each figure of ``bench`` should be, under multipliers that broadcast against its figures."""
    machine = bench.machine.with_coefficients(scaled(bench.machine.coefficients, factors))
    out = np.zeros(np.broadcast_shapes(bench.measured.shape, *(np.shape(factor) for factor in factors.values())))
    load = np.isin(bench.quantity, ("tpot", "ttft", "output"))
    if np.any(load):
        out[..., load] = _of_load(bench.take(load), machine)
    for quantity, phase in (("decode", _decode_rate), ("prefill", _prefill_rate)):
        chosen = bench.quantity == quantity
        if np.any(chosen):
            out[..., chosen] = phase(bench.take(chosen), machine)
    return out


def _of_load(bench: SpeedFigures, machine: Machine) -> Any:
    dp = np.asarray(bench.layout.dp)
    offered = np.where(bench.queued, (bench.admission.holds + 1) * dp, bench.concurrency)
    arriving = np.isfinite(bench.rate)
    if np.any(arriving):
        kept_up = concurrency_for_rate(
            bench.work, machine, bench.layout, rate=np.where(arriving, bench.rate, 0.0), isl=bench.isl, osl=bench.osl,
            kv_format=bench.kv_format, admission=bench.admission,
        )  # fmt: skip
        offered = np.where(arriving, kept_up, offered)
    speed = serving_speed(
        bench.work, machine, bench.layout, concurrency=offered, isl=bench.isl, osl=bench.osl, kv_format=bench.kv_format,
        admission=bench.admission,
    )  # fmt: skip
    rest = np.where(bench.quantity == "ttft", speed.ttft_s, speed.output_tokens_per_s)
    return np.where(bench.quantity == "tpot", speed.tpot_s, rest)


def _decode_rate(bench: SpeedFigures, machine: Machine) -> Any:
    running = np.maximum(bench.concurrency / np.asarray(bench.layout.dp), 1.0)
    context = bench.isl + bench.osl / 2
    step = decode_step(bench.work, machine, bench.layout, batch=running, context=context, kv_format=bench.kv_format)
    return bench.concurrency / step.total_s


def _prefill_rate(bench: SpeedFigures, machine: Machine) -> Any:
    prompts = bench.concurrency / np.asarray(bench.layout.dp)
    through = prefill_pass(
        bench.work, machine, bench.layout, tokens=bench.isl, cached=0, prompts=prompts, kv_format=bench.kv_format
    )
    return bench.isl * bench.concurrency / through.total_s


def fit(
    benches: Sequence[SpeedFigures], priors: Priors, *, start: ServingTerms | None = None, most_rounds: int = 25
) -> ServingTerms:
    """Offsets of every level that explain ``benches`` best (Levenberg-Marquardt on the penalised errors)."""
    problem = _Problem(benches, priors)
    offsets = problem.from_terms(start)
    cost, damping = problem.cost(offsets), 1e-2
    for _ in range(most_rounds):
        normal, gradient = problem.normal(offsets)
        better = False
        for _ in range(6):
            system = normal + damping * np.diag(np.diag(normal))
            move = np.clip(problem.solve(system, -gradient), -_MOST_MOVE, _MOST_MOVE)
            lower = problem.cost(offsets + move)
            if lower < cost:
                better = True
                break
            damping *= 5
        if not better:
            break
        gained, cost = cost - lower, lower
        offsets, damping = offsets + move, max(damping / 4, 1e-6)
        if gained < 1e-4 * cost:
            break
    return problem.to_terms(offsets)


class _Problem:
    """The least-squares problem: which offsets act on which bench, and the errors they leave."""

    def __init__(self, benches: Sequence[SpeedFigures], priors: Priors) -> None:
        self.benches = benches
        self.terms = priors.terms
        self.keys = [sorted({bench.keys[level] for bench in benches}) for level in range(len(LEVELS))]
        starts = np.cumsum([0, *(len(keys) for keys in self.keys)])
        self.blocks = [
            [int(starts[level]) + self.keys[level].index(bench.keys[level]) for level in range(len(LEVELS))]
            for bench in benches
        ]
        self.count = int(starts[-1])
        self.shared_blocks = int(starts[-2])
        widths = [
            np.tile(np.array([priors.widths[term][level] for term in self.terms]), len(keys))
            for level, keys in enumerate(self.keys)
        ]
        self.widths = np.maximum(np.concatenate(widths), _NONE)

    def from_terms(self, start: ServingTerms | None) -> Array:
        offsets = np.zeros((self.count, len(self.terms)))
        if start is not None:
            names = [(level, key) for level, keys in enumerate(self.keys) for key in keys]
            for at, (level, key) in enumerate(names):
                known = start.offsets[level].get(key, {})
                offsets[at] = [known.get(term, 0.0) for term in self.terms]
        return offsets.reshape(-1)

    def to_terms(self, offsets: Array) -> ServingTerms:
        rows = offsets.reshape(self.count, -1)
        names = [(level, key) for level, keys in enumerate(self.keys) for key in keys]
        levels: list[dict[str, dict[str, float]]] = [{} for _ in LEVELS]
        for (level, key), row in zip(names, rows, strict=True):
            levels[level][key] = {term: float(value) for term, value in zip(self.terms, row, strict=True)}
        return ServingTerms(offsets=tuple(levels))

    def cost(self, offsets: Array) -> float:
        total = float(np.sum((offsets / self.widths) ** 2))
        for index, bench in enumerate(self.benches):
            errors = _weighted(predict(bench, self._factors(index, offsets, moved=False)), bench)
            total += float(np.sum(errors**2))
        return total

    def normal(self, offsets: Array) -> tuple[Array, Array]:
        """(normal matrix, gradient) of the penalised errors at ``offsets``."""
        terms = len(self.terms)
        matrix, gradient = np.diag(1 / self.widths**2), offsets / self.widths**2
        for index, bench in enumerate(self.benches):
            errors = _weighted(predict(bench, self._factors(index, offsets, moved=True)), bench)
            slopes = ((errors[1:] - errors[0]) / _STEP).T
            own, pull = slopes.T @ slopes, slopes.T @ errors[0]
            places = [slice(block * terms, (block + 1) * terms) for block in self.blocks[index]]
            for place in places:
                gradient[place] += pull
                for other in places:
                    matrix[place, other] += own
        return matrix, gradient

    def solve(self, system: Array, right: Array) -> Array:
        """``system⁻¹ · right``. Deployments touch one another only through the levels above, so they are eliminated first
        (Schur complement), block by block."""
        terms, split = len(self.terms), self.shared_blocks * len(self.terms)
        blocks = self.count - self.shared_blocks
        own = np.stack([system[at : at + terms, at : at + terms] for at in range(split, split + blocks * terms, terms)])
        across = system[:split, split:].reshape(split, blocks, terms).transpose(1, 0, 2)
        below = right[split:].reshape(blocks, terms, 1)
        inverse = np.linalg.inv(own)
        carried = across @ inverse
        upper = system[:split, :split] - np.einsum("bij,bkj->ik", carried, across, optimize=True)
        top = np.linalg.solve(upper, right[:split] - (carried @ below).sum(axis=0)[:, 0])
        rest = inverse @ (below - across.transpose(0, 2, 1) @ top[:, None])
        return np.concatenate([top, rest.reshape(-1)])

    def _factors(self, index: int, offsets: Array, *, moved: bool) -> dict[str, Any]:
        rows = offsets.reshape(self.count, -1)[self.blocks[index]].sum(axis=0)
        rows = np.clip(rows, -_MOST_OFFSET, _MOST_OFFSET)
        if not moved:
            return {term: float(np.exp(rows[at])) for at, term in enumerate(self.terms)}
        table = np.exp(rows + np.vstack([np.zeros(len(rows)), _STEP * np.eye(len(rows))]))
        return {term: table[:, at : at + 1] for at, term in enumerate(self.terms)}


def _weighted(predicted: Any, bench: SpeedFigures) -> Any:
    """Errors over what is expected of their kind, large ones drawn in."""
    expected = np.array([_EXPECTED[quantity] for quantity in bench.quantity])
    errors = np.log(np.maximum(predicted, 1e-12) / bench.measured)
    inside = np.sqrt(2.0 * (np.sqrt(1.0 + (errors / _HUBER) ** 2) - 1.0)) * _HUBER
    return np.sign(errors) * inside * bench.trust / expected
