"""Seconds of one step that decodes and prefills at once: rows of both meet the weights together, attention does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.attention import OperatorWork, decode_work, prefill_work
from trilemma.timing.exchanges import exchange
from trilemma.timing.forward_pass import (
    between_layers,
    cache_rate,
    host_of_step,
    launches,
    output_head,
    products,
    prompt_shares,
)
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.pass_time import OperatorTally, PassTime


def mixed_step(
    work: ModelWork,
    machine: Machine,
    layout: Layout,
    *,
    batch: Numbers,
    context: Numbers,
    tokens: Numbers,
    cached: Numbers,
    prompts: Numbers = 1,
    kv_format: Format,
) -> PassTime:
    """Seconds of one step in which ``batch`` sequences of ``context`` tokens decode and ``prompts`` chunks of ``tokens`` new
    tokens behind ``cached`` ones are prefilled, on one attention replica without pipeline stages.

    Matrix products see the rows of both, so the weights are read once and a chunk that is small hides behind their traffic;
    kernels are launched once and the host starts one step. Attention to past tokens is the sum of both. Array arguments
    broadcast. Weights outside the cards, and cards of several kinds, are not counted here.

    Source: vllm/v1/core/sched/scheduler.py (one step of decoding and chunks); Agrawal et al. 2024, Sarathi-Serve, section 4.
    """
    tally = OperatorTally(machine)
    sequences, chunks = np.asarray(batch, dtype=float), np.asarray(prompts, dtype=float)
    fresh = np.asarray(tokens, dtype=float) * chunks
    rows = sequences + fresh
    products(tally, work, layout, rows=rows, scale=1.0, shares=prompt_shares(machine, work))
    for mixer, count in work.mixers:
        decode = decode_work(mixer, context=context, tp=layout.tp, kv_format=kv_format, dcp=layout.dcp)
        prompt = prefill_work(mixer, tokens=tokens, cached=cached, tp=layout.tp, kv_format=kv_format)
        for one, times in ((decode, sequences), (prompt, chunks)):
            _attend(tally, one.times(times * count), bytes_per_s=cache_rate(machine, mixer))
    between_layers(tally, work, rows=fresh, scale=1.0)
    output_head(tally, work, layout, rows=sequences + chunks)
    logits = (sequences + chunks) * work.vocab
    tally.add("lm_head", "memory_bandwidth", logits * machine.coefficients.sampled_logit_s)
    exchange(tally, work, layout, rows=rows, scale=1.0, prompt=True)
    launches(tally, work, layout, rows=rows, scale=1.0)
    host_of_step(tally, sequences=sequences + chunks)
    return tally.done()


def _attend(tally: OperatorTally, work: OperatorWork, *, bytes_per_s: Any) -> None:
    share = tally.machine.coefficients.prefill_attention
    tally.operator("attention", work, computed_in="bf16", share=share, bytes_per_s=bytes_per_s)
