"""Seconds of one forward pass, decode step or prefill, as named exposed lines, for one plan or a table of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.attention import Work, decode_work, prefill_work
from trilemma.timing.coefficients import Coefficients, at_datasheet, coefficients_for, scaled
from trilemma.timing.collectives import Wires, all_gather_s, all_reduce_s, point_to_point_s, wires
from trilemma.timing.host_weights import HOST_LINES, HostRates, decode_on_host, prefill_on_host
from trilemma.timing.operators import ExpertProducts, ModelWork, Products
from trilemma.timing.roofline import is_compute_bound, operator_time_s, peak_flops
from trilemma.timing.serving_terms import ServingTerms, current, precision_of

#: Lines of a pass in the order in which they are shown.
PASS_LINES = (
    "dense", "experts", "attention", "lm_head", *HOST_LINES, "all_reduce", "expert_exchange", "pipeline", "kernels", "host",
)  # fmt: skip
RESOURCES = ("compute", "memory_bandwidth", "interconnect", "host")
_HIDDEN_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LineWork:
    """What a line computes and moves, ``repeats`` times in the seconds that it takes; ``computed_in`` names its peak."""

    line: str
    computed_in: str
    work: Work
    repeats: Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class PassTime:
    """Exposed seconds of one pass by (line, resource that binds); lines and resources both sum to the total.

    ``works`` are FLOPs and bytes behind the lines that have any. The datasheet roof of each line is the same pass on
    `Machine.at_datasheet`.
    """

    parts: Mapping[tuple[str, str], Numbers]
    works: tuple[LineWork, ...] = ()

    @property
    def lines(self) -> dict[str, Any]:
        """Seconds by line, in the order in which lines are shown."""
        return {name: self._sum(0, name) for name in PASS_LINES if any(line == name for line, _ in self.parts)}

    @property
    def resources(self) -> dict[str, Any]:
        return {name: self._sum(1, name) for name in RESOURCES}

    def binding(self, line: str) -> str:
        """The resource that takes most of ``line``, of one plan."""
        return max(RESOURCES, key=lambda name: float(np.asarray(self.parts.get((line, name), 0.0))))

    @property
    def total_s(self) -> Any:
        return sum(self.parts.values(), start=np.float64(0.0))

    def _sum(self, at: int, name: str) -> Any:
        return sum((seconds for key, seconds in self.parts.items() if key[at] == name), start=np.float64(0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A cluster as timing sees it: datasheet figures and the coefficients of its kind of card.

    ``terms`` are the serving terms that were put in (None: none were), ``engine`` and ``precision`` name whose, ``measured`` says
    whether runs of this very deployment are among what they were fitted to. ``ideal``: everything runs at its datasheet figure.
    """

    accelerator: Accelerator
    coefficients: Coefficients
    wires: Wires
    cluster: Cluster
    engine: str = ""
    precision: str = ""
    measured: bool = False
    ideal: bool = False
    terms: ServingTerms | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        coefficients = coefficients_for(cluster.accelerator)
        return cls(
            accelerator=cluster.accelerator,
            coefficients=coefficients,
            wires=wires(cluster, coefficients),
            cluster=cluster,
        )

    @classmethod
    def serving(cls, cluster: Cluster, *, work: ModelWork, engine: str, terms: ServingTerms | None = None) -> Machine:
        """`of`, with the coefficients scaled by ``terms`` (those in use, where none are given) of ``engine`` on such cards."""
        plain, terms, precision = cls.of(cluster), terms or current(), precision_of(work)
        factors = terms.factors(engine, cluster.accelerator, precision)
        fitted = plain.with_coefficients(scaled(plain.coefficients, factors))
        measured = terms.measured(engine, cluster.accelerator, precision)
        return replace(fitted, engine=engine, precision=precision, measured=measured, terms=terms)

    def with_coefficients(self, coefficients: Coefficients) -> Machine:
        """The same cards and wires under other coefficients."""
        return replace(self, coefficients=coefficients, wires=wires(self.cluster, coefficients))

    def at_datasheet(self) -> Machine:
        """The same cards and wires at their datasheet figures: no pass is faster, its lines are the roofs of this one's."""
        return replace(self.with_coefficients(at_datasheet(self.coefficients)), ideal=True)

    @property
    def bandwidth(self) -> float:
        return self.accelerator.bandwidth_bytes_per_s.value


class _Tally:
    """Adds operators up by line and by binding resource."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parts: dict[tuple[str, str], Any] = {}
        self.works: list[LineWork] = []

    def add(self, line: str, resource: str, seconds: Any) -> None:
        self.parts[line, resource] = self.parts.get((line, resource), np.float64(0.0)) + seconds

    def operator(
        self, line: str, work: Work, *, computed_in: str, flops_per_s: Any, bytes_per_s: Any, scale: Numbers = 1.0
    ) -> None:
        self.moved(line, work, computed_in=computed_in, repeats=scale)
        power = self.machine.coefficients.overlap_power
        rates = {"flops_per_s": flops_per_s, "bytes_per_s": bytes_per_s}
        seconds = operator_time_s(work.flops, work.bytes, power=power, **rates) * scale
        bound = is_compute_bound(work.flops, work.bytes, **rates)
        self.add(line, "compute", np.where(bound, seconds, 0.0))
        self.add(line, "memory_bandwidth", np.where(bound, 0.0, seconds))

    def product(
        self,
        line: str,
        product: Products | ExpertProducts,
        work: Work,
        *,
        share: Numbers = 1.0,
        stream: Numbers = 1.0,
        scale: Numbers = 1.0,
    ) -> None:
        machine = self.machine
        self.operator(
            line,
            work,
            computed_in=product.computed_in,
            flops_per_s=peak_flops(machine.accelerator, product.computed_in)
            * machine.coefficients.matmul_share(product.computed_in)
            * share,
            bytes_per_s=machine.bandwidth * np.minimum(machine.coefficients.stream_share(product.bits) * stream, 1.0),
            scale=scale,
        )

    def moved(self, line: str, work: Work, *, computed_in: str, repeats: Numbers) -> None:
        self.works.append(LineWork(line=line, computed_in=computed_in, work=work, repeats=repeats))

    def join(self, other: PassTime) -> None:
        """The same pass through other cards, its start and the way to them counted already."""
        for (line, resource), seconds in other.parts.items():
            if line not in ("host", "pipeline"):
                self.add(line, resource, seconds)
        self.works += other.works

    def done(self) -> PassTime:
        return PassTime(parts=dict(self.parts), works=tuple(self.works))


def decode_step(
    work: ModelWork,
    machine: Machine,
    layout: Layout,
    *,
    batch: Numbers,
    context: Numbers,
    kv_format: Format,
    tokens: Numbers = 1,
) -> PassTime:
    """Seconds until each of ``batch`` running sequences of one replica has its next token.

    ``batch`` counts sequences of one attention replica (``dp`` of them run), ``context`` their mean length, ``kv_format``
    how the cache is stored; each sequence passes ``tokens`` tokens (more than one where drafts are verified). With ``pp``
    stages the batch runs as up to ``pp`` micro-batches, one in each stage, so a token takes the time of all layers at
    ``batch / pp`` sequences; uneven stages wait for the fullest. Array arguments broadcast; a line that does not apply is
    zero or absent.
    """
    tally = _Tally(machine)
    pp = np.asarray(layout.pp)
    sequences = np.maximum(np.asarray(batch, dtype=float) / pp, 1.0)
    rows = sequences * tokens
    uneven = _uneven(work.layers, pp, np.minimum(np.asarray(batch, dtype=float), pp))
    _products(tally, work, layout, rows=rows, scale=uneven)
    bf16 = peak_flops(machine.accelerator, "bf16") * machine.coefficients.prefill_attention
    for mixer, count in work.mixers:
        one = decode_work(mixer, context=context, tp=layout.tp, kv_format=kv_format, dcp=layout.dcp)
        tally.operator(
            "attention",
            Work(flops=one.flops * rows * count, bytes=one.bytes * sequences * count),
            computed_in="bf16",
            flops_per_s=bf16,
            bytes_per_s=machine.bandwidth * machine.coefficients.cache_stream,
            scale=uneven,
        )
    _head(tally, work, layout, rows=rows)
    _exchange(tally, work, layout, rows=rows, scale=uneven)
    _launches(tally, work, uneven)
    if work.host is not None:
        over = decode_on_host(
            tally, work.host, _host_rates(machine, work), rows=np.asarray(batch, dtype=float) * tokens, sequences=batch,
            context=context, kv_format=kv_format, evenness=np.minimum(machine.coefficients.routing_evenness, 1.0), tp=layout.tp,
        )  # fmt: skip
        _products(tally, work.host.on_cards, layout, rows=rows, scale=np.where(over, uneven, 0.0))
    for part, other in work.beside:
        there = other.at_datasheet() if machine.ideal else other
        tally.join(decode_step(part, there, layout, batch=batch, context=context, kv_format=kv_format, tokens=tokens))
    tally.add("host", "host", machine.coefficients.step_s + machine.coefficients.sequence_s * np.asarray(batch))
    return tally.done()


def prefill_pass(
    work: ModelWork,
    machine: Machine,
    layout: Layout,
    *,
    tokens: Numbers,
    cached: Numbers,
    prompts: Numbers = 1,
    kv_format: Format,
) -> PassTime:
    """Seconds to run ``prompts`` prompts of ``tokens`` new tokens each, behind ``cached`` cached ones, to their first token.

    With ``pp`` stages this is the way through all of them. Attention-data-parallel replicas of a mixture prefill at once,
    since experts move in step. Array arguments broadcast.
    """
    tally = _Tally(machine)
    rows = np.asarray(tokens, dtype=float) * prompts
    shares = (machine.coefficients.prefill_matmul, machine.coefficients.prefill_experts)
    _products(tally, work, layout, rows=rows, scale=1.0, shares=shares)
    flops_per_s = peak_flops(machine.accelerator, "bf16") * machine.coefficients.prefill_attention
    for mixer, count in work.mixers:
        one = prefill_work(mixer, tokens=tokens, cached=cached, tp=layout.tp, kv_format=kv_format)
        tally.operator(
            "attention",
            one.times(np.asarray(prompts, dtype=float) * count),
            computed_in="bf16",
            flops_per_s=flops_per_s,
            bytes_per_s=machine.bandwidth * machine.coefficients.cache_stream,
        )
    _head(tally, work, layout, rows=np.asarray(prompts, dtype=float))
    _exchange(tally, work, layout, rows=rows, scale=1.0)
    _launches(tally, work, 1.0)
    if work.host is not None:
        over = prefill_on_host(
            tally, work.host, _host_rates(machine, work), tokens=tokens, cached=cached, prompts=prompts,
            kv_format=kv_format, tp=layout.tp,
        )  # fmt: skip
        _products(tally, work.host.on_cards, layout, rows=rows, scale=np.where(over, 1.0, 0.0), shares=shares)
    for part, other in work.beside:
        there = other.at_datasheet() if machine.ideal else other
        tally.join(
            prefill_pass(part, there, layout, tokens=tokens, cached=cached, prompts=prompts, kv_format=kv_format)
        )
    tally.add("host", "host", machine.coefficients.step_s + machine.coefficients.sequence_s * np.asarray(prompts))
    return tally.done()


def _host_rates(machine: Machine, work: ModelWork) -> HostRates:
    """What the host of ``machine`` reaches with the part of ``work`` that lies there."""
    if machine.ideal or work.host is None:
        return HostRates.at_datasheet(machine.cluster)
    return HostRates.of(machine.cluster, work.host.part)


def _products(
    tally: _Tally, work: ModelWork, layout: Layout, *, rows: Any, scale: Any, shares: tuple[Any, Any] = (1.0, 1.0)
) -> None:
    """Dense and expert products; ``shares`` are what they reach of the peak in this kind of pass over decode's."""
    coefficients = tally.machine.coefficients
    pooled: dict[tuple[str, float], tuple[Products, Work]] = {}
    for product in work.dense:
        alike = (product.computed_in, product.bits)
        before = pooled[alike][1] if alike in pooled else Work()
        pooled[alike] = (product, before + product.work(rows, layout.tp))
    for product, sum_of_work in pooled.values():
        tally.product("dense", product, sum_of_work, share=shares[0], scale=scale)
    if not work.experts:
        return
    tokens = rows * np.asarray(layout.dp)
    ranks = np.asarray(layout.tp) * layout.dp
    tile = np.where(
        tokens > coefficients.experts_tile_switch_tokens,
        coefficients.experts_tile_rows_large,
        coefficients.experts_tile_rows_small,
    )
    skew = np.where(np.asarray(layout.ep) > 1, coefficients.expert_imbalance, 1.0)
    for expert in work.experts:
        tally.product(
            "experts",
            expert,
            expert.work(tokens, ranks, tile_rows=tile, evenness=coefficients.routing_evenness),
            share=coefficients.experts_share_of_matmul * shares[1],
            stream=coefficients.experts_stream,
            scale=scale * skew,
        )


def _head(tally: _Tally, work: ModelWork, layout: Layout, *, rows: Any) -> None:
    """The output matrix, for the one row of each sequence that is sampled; it never sees the rest of a prompt."""
    for product in work.head:
        tally.product("lm_head", product, product.work(rows, layout.tp))


def _exchange(tally: _Tally, work: ModelWork, layout: Layout, *, rows: Any, scale: Any) -> None:
    """Partial sums joined after each mixer and feed-forward, tokens traded between expert ranks, stages handed on.

    Experts shared by ``dp`` attention replicas gather all tokens and scatter the sums (vLLM's default
    ``allgather_reducescatter``); inside one replica they need no exchange beyond the all-reduce.
    """
    over = tally.machine.wires
    tp, pp, dp = (np.asarray(degree) for degree in (layout.tp, layout.pp, layout.dp))
    hidden = rows * work.hidden * _HIDDEN_BYTES
    alone = np.where(dp > 1, 0, work.expert_ffn_layers)
    joins = work.mixer_layers + work.dense_ffn_layers + alone
    seconds = joins * all_reduce_s(hidden, tp, over) * scale
    seconds = seconds + all_gather_s(rows * work.vocab / tp * _HIDDEN_BYTES, tp, over) * (tp > 1)
    tally.add("all_reduce", "interconnect", seconds)
    if work.experts:
        traded = 2 * all_gather_s(hidden, dp, over) + all_reduce_s(hidden, tp, over)
        tally.add("expert_exchange", "interconnect", np.where(dp > 1, work.expert_ffn_layers * traded * scale, 0.0))
    handed = (pp - 1) * point_to_point_s(hidden / tp, tp * pp, over)
    tally.add("pipeline", "interconnect", np.where(pp > 1, handed, 0.0))


def _launches(tally: _Tally, work: ModelWork, scale: Any) -> None:
    coefficients = tally.machine.coefficients
    seconds = work.kernels * coefficients.kernel_s + work.attention_layers * coefficients.attention_kernel_s
    seconds = seconds + work.expert_ffn_layers * coefficients.experts_kernel_s
    tally.add("kernels", "host", seconds * scale)


def _uneven(layers: int, pp: Any, in_flight: Any) -> Any:
    """How much longer than all layers one after another a round of ``in_flight`` micro-batches takes: the fullest of
    ``pp`` stages sets the pace once every stage is busy."""
    fullest = np.ceil(layers / pp) / max(layers, 1)
    return np.maximum(in_flight * fullest, 1.0)
