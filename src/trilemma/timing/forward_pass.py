"""Seconds of one forward pass, decode step or prefill, as named exposed lines, for one plan or a table of plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.attention import Mixer
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.attention import OperatorWork, decode_work, prefill_work
from trilemma.timing.coefficients import spec_sheet
from trilemma.timing.exchanges import exchange
from trilemma.timing.host_weights import HostRates, decode_on_host, prefill_on_host
from trilemma.timing.launching import launched_kernels
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork, Products
from trilemma.timing.pass_time import OperatorTally, PassTime

#: Bytes that a norm moves for each element of a token, on every rank: a part and the residual are read in 16 bits, their sum and
#: its norm written, which is read once more and written in 8 bits for the product. Rows of decode stay in the cache.
_NORM_BYTES = 4 * 2 + 2 + 1
#: What kernels of grouped rows multiply.
_GROUPED = "fp8"


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
    tally = OperatorTally(machine)
    pp = np.asarray(layout.pp)
    sequences = np.maximum(np.asarray(batch, dtype=float) / pp, 1.0)
    rows = sequences * tokens
    uneven = _uneven(work.layers, pp, np.minimum(np.asarray(batch, dtype=float), pp))
    products(tally, work, layout, rows=rows, scale=uneven)
    for mixer, count in work.mixers:
        one = decode_work(mixer, context=context, tp=layout.tp, kv_format=kv_format, dcp=layout.dcp)
        tally.operator(
            "attention",
            OperatorWork(flops=one.flops * rows * count, bytes=one.bytes * sequences * count),
            computed_in="bf16",
            share=machine.coefficients.prefill_attention,
            bytes_per_s=cache_rate(machine, mixer),
            scale=uneven,
        )
    output_head(tally, work, layout, rows=rows)
    tally.add("lm_head", "memory_bandwidth", rows * work.vocab * machine.coefficients.sampled_logit_s)
    exchange(tally, work, layout, rows=rows, scale=uneven)
    launches(tally, work, layout, rows=rows, scale=uneven)
    if work.host is not None:
        over = decode_on_host(
            tally, work.host, _host_rates(machine, work), rows=np.asarray(batch, dtype=float) * tokens, sequences=batch,
            context=context, kv_format=kv_format, evenness=np.minimum(machine.coefficients.routing_evenness, 1.0), tp=layout.tp,
        )  # fmt: skip
        products(tally, work.host.on_cards, layout, rows=rows, scale=np.where(over, uneven, 0.0))
    for part, other in work.beside:
        there = other.at_datasheet() if machine.ideal else other
        tally.join(decode_step(part, there, layout, batch=batch, context=context, kv_format=kv_format, tokens=tokens))
    host_of_step(tally, sequences=batch)
    if machine.eager and not machine.ideal:
        tally.at_least("kernels", "host", launched_kernels(work) * spec_sheet()["eager"]["launch_s"] * uneven)
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

    With ``pp`` stages this is the way through all of them; micro-batches, where the engine cuts a pass into such, are in
    different stages at once. Attention-data-parallel replicas of a mixture prefill at once,
    since experts move in step. Array arguments broadcast.
    """
    tally = OperatorTally(machine)
    rows, times, overlapped = _micro_batches(machine, work, np.asarray(tokens, dtype=float) * prompts, layout)
    tally.overlapped, turns = overlapped, times * overlapped
    shares = prompt_shares(machine, work)
    products(tally, work, layout, rows=rows, scale=turns, shares=shares)
    for mixer, count in work.mixers:
        one = prefill_work(mixer, tokens=tokens, cached=cached, tp=layout.tp, kv_format=kv_format)
        tally.operator(
            "attention",
            one.times(np.asarray(prompts, dtype=float) * count),
            computed_in="bf16",
            share=machine.coefficients.prefill_attention,
            bytes_per_s=cache_rate(machine, mixer),
            scale=overlapped,
        )
        if machine.coefficients.score_bytes > 0:
            scores = mixer.prefill_scores(tokens, cached, rows, tp=layout.tp) * machine.coefficients.score_bytes
            moved = OperatorWork(bytes=scores * np.asarray(prompts, dtype=float) * count)
            _move(tally, "attention", moved, scale=overlapped)
    between_layers(tally, work, rows=rows, scale=turns)
    output_head(tally, work, layout, rows=np.asarray(prompts, dtype=float))
    exchange(tally, work, layout, rows=rows, scale=turns, prompt=True)
    launches(tally, work, layout, rows=rows, scale=turns)
    if work.host is not None:
        over = prefill_on_host(
            tally, work.host, _host_rates(machine, work), tokens=tokens, cached=cached, prompts=prompts,
            kv_format=kv_format, tp=layout.tp,
        )  # fmt: skip
        products(tally, work.host.on_cards, layout, rows=rows, scale=np.where(over, turns, 0.0), shares=shares)
    for part, other in work.beside:
        there = other.at_datasheet() if machine.ideal else other
        tally.join(
            prefill_pass(part, there, layout, tokens=tokens, cached=cached, prompts=prompts, kv_format=kv_format)
        )
    tally.add("host", "host", machine.coefficients.step_s + machine.coefficients.sequence_s * np.asarray(prompts))
    return tally.done()


def between_layers(tally: OperatorTally, work: ModelWork, *, rows: Any, scale: Any) -> None:
    """Traffic of sums and norms between the layers, for ``rows`` of prompts."""
    layers = work.mixer_layers + work.dense_ffn_layers + work.expert_ffn_layers
    _move(tally, "norms", OperatorWork(bytes=rows * work.hidden * layers * _NORM_BYTES), scale=scale)


def _micro_batches(machine: Machine, work: ModelWork, rows: Any, layout: Layout) -> tuple[Any, Any, Any]:
    """(rows of one micro-batch, how many of them, the share of the time one stage after another that they take).

    ``n`` of them pass ``p`` stages in ``n + p − 1`` turns of ``n · p``. Numbers or arrays. Source: ggml-org/llama.cpp pull 6017
    (n_ubatch; pipeline parallelism over cards); Huang et al. 2019, GPipe.
    """
    most = machine.coefficients.micro_batch_rows
    if most > 0 and work.host is not None:
        most = work.host.part.micro_batch
    if most <= 0:
        return rows, 1.0, 1.0
    times, stages = np.maximum(np.ceil(rows / most), 1.0), np.asarray(layout.pp)
    return rows / times, times, (times + stages - 1) / (times * stages)


def _move(tally: OperatorTally, line: str, work: OperatorWork, *, scale: Any) -> None:
    """Traffic by itself, at the rate at which 16-bit weights are read."""
    machine = tally.machine
    rate = machine.bandwidth * np.minimum(machine.coefficients.stream_share(16), 1.0)
    tally.operator(line, work, computed_in="bf16", share=1.0, bytes_per_s=rate, scale=scale)


def prompt_shares(machine: Machine, work: ModelWork) -> tuple[Any, Any]:
    """What dense products and experts reach in passes of prompts over what they reach in those of decode.

    Where tokens are sent to the ranks of their experts alone, engines multiply FP8 experts with grouped kernels that are given
    long stretches of rows: these reach what dense products do. Others fuse gathering and products into one kernel, which
    fitted runs tell of.

    Two numbers. Source: deepseek-ai/DeepGEMM README, H800: 1,093 to 1,297 TFLOPS grouped (contiguous), 1,025 to 1,358 dense;
    SGLang on GB200 with DeepEP and DeepGEMM: 18,471 prompt tokens a second and GPU of DeepSeek-R1 in FP8
    (lmsys.org/blog/2025-09-25-gb200-part-2).
    """
    numbers = machine.coefficients
    experts = numbers.prefill_experts
    if machine.routes_tokens and work.experts and all(one.computed_in == _GROUPED for one in work.experts):
        experts = np.maximum(experts, numbers.prefill_matmul / numbers.experts_share_of_matmul)
    return numbers.prefill_matmul, experts


def cache_rate(machine: Machine, mixer: Mixer) -> Any:
    """Bytes/s at which a layer reads what it keeps: pages of a cache as attention kernels reach them, states in one piece as
    16-bit weights. A number, or an array with one entry per plan. Source: the shares are fitted, ``spec_sheet.toml``."""
    coefficients = machine.coefficients
    if mixer.keeps_state:
        return machine.bandwidth * np.minimum(coefficients.stream_share(16), 1.0)
    return machine.bandwidth * coefficients.cache_stream


def _host_rates(machine: Machine, work: ModelWork) -> HostRates:
    """What the host of ``machine`` reaches with the part of ``work`` that lies there."""
    if machine.ideal or work.host is None:
        return HostRates.at_datasheet(machine.cluster)
    return HostRates.of(machine.cluster, work.host.part)


def products(
    tally: OperatorTally,
    work: ModelWork,
    layout: Layout,
    *,
    rows: Any,
    scale: Any,
    shares: tuple[Any, Any] = (1.0, 1.0),
) -> None:
    """Dense and expert products; ``shares`` are what they reach of the peak in this kind of pass over decode's."""
    coefficients = tally.machine.coefficients
    pooled: dict[tuple[str, float], tuple[Products, OperatorWork]] = {}
    for product in work.dense:
        alike = (product.computed_in, product.bits)
        before = pooled[alike][1] if alike in pooled else OperatorWork()
        pooled[alike] = (product, before + product.work(rows, layout.tp))
    for product, sum_of_work in pooled.values():
        tally.product("dense", product, sum_of_work, share=shares[0], scale=scale)
    if coefficients.expands_above_rows > 0:
        narrow = [one for one in work.dense if one.bits < 16]
        written = sum((one.bytes + 2.0 * one.elements) * one.share(layout.tp) for one in narrow)
        expanded = OperatorWork(bytes=np.where(rows > coefficients.expands_above_rows, written, 0.0))
        _move(tally, "dense", expanded, scale=scale)
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
            expert.work(
                tokens,
                ranks,
                tile_rows=tile,
                evenness=coefficients.routing_evenness,
                row_by_row=tokens <= coefficients.row_by_row_tokens,
            ),
            share=coefficients.experts_share_of_matmul * shares[1],
            stream=coefficients.experts_stream,
            scale=scale * skew,
        )


def output_head(tally: OperatorTally, work: ModelWork, layout: Layout, *, rows: Any) -> None:
    """The output matrix, for the one row of each sequence that is sampled; it never sees the rest of a prompt."""
    for product in work.head:
        tally.product("lm_head", product, product.work(rows, layout.tp))


def launches(tally: OperatorTally, work: ModelWork, layout: Layout, *, rows: Any, scale: Any) -> None:
    """What kernels take to start; a group of experts the longer, the more experts of one rank ``rows`` tokens wake.

    Seconds, arrays (plans,). Source: ``kernels`` of ``spec_sheet.toml``, under the terms of an engine.
    """
    numbers = tally.machine.coefficients
    seconds = work.kernels * numbers.kernel_s + work.attention_kernels * numbers.attention_kernel_s
    if work.experts:
        tokens = rows * np.asarray(layout.dp)
        active = work.experts[0].active(tokens, evenness=numbers.routing_evenness) / np.asarray(layout.ep)
        group_s = numbers.experts_kernel_s * (1.0 + numbers.experts_kernel_of_each * active)
        if all(one.computed_in == _GROUPED for one in work.experts):
            group_s = group_s * numbers.fp8_experts_kernels
        seconds = seconds + work.expert_ffn_layers * group_s
    tally.add("kernels", "host", seconds * scale)


def host_of_step(tally: OperatorTally, *, sequences: Numbers) -> None:
    """What the host adds to a decode step: a fixed time, and that by which its work for ``sequences`` outlasts the cards.

    Seconds, arrays (plans,). Source: ``host`` of ``spec_sheet.toml``, under the terms of an engine.
    """
    numbers = tally.machine.coefficients
    each_s = numbers.sequence_s * np.asarray(sequences)
    if not tally.machine.ideal:
        cards_s = sum(tally.parts.values(), start=np.float64(0.0))
        each_s = outlasting_s(cards_s, each_s, numbers.host_overlap_power)
    tally.add("host", "host", numbers.step_s + each_s)


def outlasting_s(cards_s: Any, host_s: Any, power: Any) -> Any:
    """Seconds by which ``host_s`` of scheduling and handing on tokens lengthen ``cards_s``.

    A scheduler that works ahead prepares the next step while the cards compute this one, so the longer of the two sets the pace:
    the ``power``-norm of both, rounded where they are alike as products are. Power 1: they take turns, and all is added. Numbers
    or arrays (plans,). Source: the sum is exact for 1, the maximum for infinity; ``host_overlap_power`` of ``spec_sheet.toml``.
    """
    return (cards_s**power + host_s**power) ** (1.0 / power) - cards_s


def _uneven(layers: int, pp: Any, in_flight: Any) -> Any:
    """How much longer than all layers one after another a round of ``in_flight`` micro-batches takes: the fullest of
    ``pp`` stages sets the pace once every stage is busy."""
    fullest = np.ceil(layers / pp) / max(layers, 1)
    return np.maximum(in_flight * fullest, 1.0)
