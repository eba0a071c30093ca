"""What the ranks of one forward pass exchange: partial sums, tokens of experts, parts of attention, stages handed on."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.plans import Layout
from trilemma.quantities import ceil_div
from trilemma.timing.collectives import Wires, all_gather_s, all_reduce_s, point_to_point_s
from trilemma.timing.operators import ModelWork
from trilemma.timing.pass_time import OperatorTally

_HIDDEN_BYTES = 2
_LOG_SUM_BYTES = 4


def exchange(
    tally: OperatorTally, work: ModelWork, layout: Layout, *, rows: Any, scale: Any, prompt: bool = False
) -> None:
    """Partial sums joined after each mixer and feed-forward, tokens traded between expert ranks, stages handed on.

    Experts shared by ``dp`` attention replicas gather all tokens and scatter the sums (vLLM's default
    ``allgather_reducescatter``); inside one replica they need no exchange beyond the all-reduce. ``prompt``: rows are of
    prompts.
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
    if np.any(np.asarray(layout.dcp) > 1):
        tally.add("context_exchange", "interconnect", partials_s(over, work, layout, rows=rows, prompt=prompt) * scale)
    handed = (pp - 1) * point_to_point_s(hidden / tp, tp * pp, over)
    tally.add("pipeline", "interconnect", np.where(pp > 1, handed, 0.0))


def partials_s(over: Wires, work: ModelWork, layout: Layout, *, rows: Any, prompt: bool) -> Any:
    """Seconds in which the ``dcp`` ranks that share out cached tokens gather one another's queries, then the log-sum-exp of
    each head's part in FP32, and scatter the partial outputs summed: three collectives in each such layer.

    Prompts of latent attention gather no queries: new tokens are attended to where they are.

    Arrays (plans,). Source: vllm/v1/attention/ops/common.py, cp_lse_ag_out_rs.
    """
    tp, dcp = np.asarray(layout.tp), np.asarray(layout.dcp)
    total: Any = np.float64(0.0)
    for mixer, count in work.mixers:
        query, output = mixer.partial_widths
        if not query or (prompt and mixer.is_latent):
            continue
        heads = rows * ceil_div(mixer.heads, tp)
        blocks = (heads * query * _HIDDEN_BYTES, heads * dcp * _LOG_SUM_BYTES, heads * output * _HIDDEN_BYTES)
        total = total + count * sum(all_gather_s(block, dcp, over) for block in blocks)
    return np.where(dcp > 1, total, 0.0)
