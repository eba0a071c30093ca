"""Seconds of one forward pass, decode step or prefill, as named exposed lines, for one plan or a table of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.attention import Work, decode_work, prefill_work
from trilemma.timing.coefficients import Coefficients, coefficients_for
from trilemma.timing.collectives import Wires, all_gather_s, all_reduce_s, point_to_point_s, wires
from trilemma.timing.operators import ExpertProducts, ModelWork, Products
from trilemma.timing.roofline import is_compute_bound, operator_time_s, peak_flops

#: Lines of a pass in the order in which they are shown.
PASS_LINES = (
    "dense", "experts", "attention", "lm_head", "all_reduce", "expert_exchange", "pipeline", "kernels", "host",
)  # fmt: skip
RESOURCES = ("compute", "memory_bandwidth", "interconnect", "host")
_HIDDEN_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class PassTime:
    """Exposed seconds of one pass by line, and the same seconds by the resource that binds; both sum to the total."""

    lines: Mapping[str, Numbers]
    resources: Mapping[str, Numbers]

    @property
    def total_s(self) -> Any:
        return sum(self.lines.values(), start=np.float64(0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A cluster as timing sees it: datasheet figures and the coefficients of its kind of card."""

    accelerator: Accelerator
    coefficients: Coefficients
    wires: Wires

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        coefficients = coefficients_for(cluster.accelerator)
        return cls(accelerator=cluster.accelerator, coefficients=coefficients, wires=wires(cluster, coefficients))

    @property
    def bandwidth(self) -> float:
        return self.accelerator.bandwidth_bytes_per_s.value


class _Tally:
    """Adds operators up by line and by binding resource."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.lines: dict[str, Any] = {}
        self.resources: dict[str, Any] = {resource: np.float64(0.0) for resource in RESOURCES}

    def add(self, line: str, resource: str, seconds: Any) -> None:
        self.lines[line] = self.lines.get(line, np.float64(0.0)) + seconds
        self.resources[resource] = self.resources[resource] + seconds

    def operator(self, line: str, work: Work, *, flops_per_s: float, bytes_per_s: float, scale: Numbers = 1.0) -> None:
        power = self.machine.coefficients.overlap_power
        rates = {"flops_per_s": flops_per_s, "bytes_per_s": bytes_per_s}
        seconds = operator_time_s(work.flops, work.bytes, power=power, **rates) * scale
        bound = is_compute_bound(work.flops, work.bytes, **rates)
        self.lines[line] = self.lines.get(line, np.float64(0.0)) + seconds
        self.resources["compute"] = self.resources["compute"] + np.where(bound, seconds, 0.0)
        self.resources["memory_bandwidth"] = self.resources["memory_bandwidth"] + np.where(bound, 0.0, seconds)

    def product(
        self, line: str, product: Products | ExpertProducts, work: Work, *, share: float = 1.0, scale: Numbers = 1.0
    ) -> None:
        machine = self.machine
        self.operator(
            line,
            work,
            flops_per_s=peak_flops(machine.accelerator, product.computed_in)
            * machine.coefficients.matmul_share(product.computed_in)
            * share,
            bytes_per_s=machine.bandwidth * machine.coefficients.stream_share(product.bits),
            scale=scale,
        )

    def done(self) -> PassTime:
        return PassTime(
            lines={name: self.lines[name] for name in PASS_LINES if name in self.lines}, resources=dict(self.resources)
        )


def decode_step(
    work: ModelWork, machine: Machine, layout: Layout, *, batch: Numbers, context: Numbers, kv_format: Format
) -> PassTime:
    """Seconds until each of ``batch`` running sequences of one replica has its next token.

    ``batch`` counts sequences of one attention replica (``dp`` of them run), ``context`` their mean length, ``kv_format``
    how the cache is stored. With ``pp`` stages the batch runs as ``pp`` micro-batches, one in each stage, so a token
    takes the time of all layers at ``batch / pp`` sequences; uneven stages wait for the fullest. Array arguments
    broadcast; a line that does not apply is zero or absent.
    """
    tally = _Tally(machine)
    pp = np.asarray(layout.pp)
    rows = np.maximum(np.asarray(batch, dtype=float) / pp, 1.0)
    uneven = _uneven(work.layers, pp)
    _products(tally, work, layout, rows=rows, scale=uneven)
    bf16 = peak_flops(machine.accelerator, "bf16") * machine.coefficients.prefill_attention
    for mixer, count in work.mixers:
        one = decode_work(mixer, context=context, tp=layout.tp, kv_format=kv_format, dcp=layout.dcp)
        tally.operator(
            "attention",
            one.times(rows * count),
            flops_per_s=bf16,
            bytes_per_s=machine.bandwidth * machine.coefficients.cache_stream,
            scale=uneven,
        )
    _head(tally, work, layout, rows=rows)
    _exchange(tally, work, layout, rows=rows, scale=uneven)
    _launches(tally, work, uneven)
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
    _products(tally, work, layout, rows=rows, scale=1.0)
    flops_per_s = peak_flops(machine.accelerator, "bf16") * machine.coefficients.prefill_attention
    for mixer, count in work.mixers:
        one = prefill_work(mixer, tokens=tokens, cached=cached, tp=layout.tp, kv_format=kv_format)
        tally.operator(
            "attention",
            one.times(np.asarray(prompts, dtype=float) * count),
            flops_per_s=flops_per_s,
            bytes_per_s=machine.bandwidth * machine.coefficients.cache_stream,
        )
    _head(tally, work, layout, rows=np.asarray(prompts, dtype=float))
    _exchange(tally, work, layout, rows=rows, scale=1.0)
    _launches(tally, work, 1.0)
    tally.add("host", "host", machine.coefficients.step_s + machine.coefficients.sequence_s * np.asarray(prompts))
    return tally.done()


def _products(tally: _Tally, work: ModelWork, layout: Layout, *, rows: Any, scale: Any) -> None:
    coefficients = tally.machine.coefficients
    pooled: dict[tuple[str, float], tuple[Products, Work]] = {}
    for product in work.dense:
        alike = (product.computed_in, product.bits)
        before = pooled[alike][1] if alike in pooled else Work()
        pooled[alike] = (product, before + product.work(rows, layout.tp))
    for product, sum_of_work in pooled.values():
        tally.product("dense", product, sum_of_work, scale=scale)
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
            expert.work(tokens, ranks, tile_rows=tile),
            share=coefficients.experts_share_of_matmul,
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


def _uneven(layers: int, pp: Any) -> Any:
    """How much longer the fullest pipeline stage is than the mean one."""
    return pp * np.ceil(layers / pp) / max(layers, 1)
