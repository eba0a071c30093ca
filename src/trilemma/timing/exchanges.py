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
#: A token's sums of squares of queries and of keys, in FP32.
_SQUARES_BYTES = 8
#: Bytes of a token on its way to an expert over those of it on its way back: 8 bits to 16.
_SENT_SHARE = 0.5
_LOG_SUM_BYTES = 4


def exchange(
    tally: OperatorTally, work: ModelWork, layout: Layout, *, rows: Any, scale: Any, prompt: bool = False
) -> None:
    """Partial sums joined after each mixer and feed-forward, tokens traded between expert ranks, stages handed on.

    Experts shared by ``dp`` attention replicas gather all tokens and scatter the sums (vLLM's default
    ``allgather_reducescatter``), or where the machine ``routes_tokens`` send each token to its experts (`routed_s`); inside one
    replica they need no exchange beyond the all-reduce. ``prompt``: rows are of prompts.
    """
    over = tally.machine.wires
    tp, pp, dp = (np.asarray(degree) for degree in (layout.tp, layout.pp, layout.dp))
    hidden = rows * work.hidden * _HIDDEN_BYTES
    alone = np.where(dp > 1, 0, work.expert_ffn_layers)
    joins = work.mixer_layers + work.dense_ffn_layers + alone
    squares = work.norms_over_heads * all_reduce_s(rows * _SQUARES_BYTES, tp, over)
    seconds = (joins * all_reduce_s(hidden, tp, over) + squares) * scale
    seconds = seconds + all_gather_s(rows * work.vocab / tp * _HIDDEN_BYTES, tp, over) * (tp > 1)
    tally.add("all_reduce", "interconnect", seconds)
    if work.experts:
        top_k = max(one.top_k for one in work.experts)
        to_experts = routed_s if tally.machine.routes_tokens else _gathered_s
        traded = to_experts(hidden, dp, top_k, over) + all_reduce_s(hidden, tp, over)
        tally.add("expert_exchange", "interconnect", np.where(dp > 1, work.expert_ffn_layers * traded * scale, 0.0))
    if np.any(np.asarray(layout.dcp) > 1):
        tally.add("context_exchange", "interconnect", partials_s(over, work, layout, rows=rows, prompt=prompt) * scale)
    handed = (pp - 1) * point_to_point_s(hidden / tp, tp * pp, over)
    tally.add("pipeline", "interconnect", np.where(pp > 1, handed, 0.0))


def _gathered_s(hidden_bytes: Any, replicas: Any, top_k: int, over: Wires) -> Any:  # noqa: ARG001 - the shape of both ways
    """Tokens of all ``replicas`` gathered, the sums scattered."""
    return 2 * all_gather_s(hidden_bytes, replicas, over)


def routed_s(hidden_bytes: Any, replicas: Any, top_k: int, over: Wires) -> Any:
    """Seconds in which each of ``replicas`` sends its tokens to their ``top_k`` experts and has the results back.

    ``top_k · (n − 1)/n`` copies of each token leave a rank, in 8 bits, and come back in 16: ``hidden_bytes`` are those of one
    copy of its tokens in 16 bits. What is sent does not grow with the replicas, as what is gathered does.

    Arrays (plans,). Source: deepseek-ai/DeepEP README (dispatch in FP8, combine in BF16; 7168 hidden, top-8).
    """
    replicas = np.asarray(replicas, dtype=float)
    local = np.minimum(replicas, over.local_ranks)
    copies_bytes = hidden_bytes * top_k / replicas
    latency_s = over.local_latency_s + np.where(replicas > local, over.network_latency_s, 0.0)
    moved_s = (local - 1) / over.local_bytes_per_s + (replicas - local) / over.network_bytes_per_s
    return np.where(replicas > 1, 2 * latency_s + (1 + _SENT_SHARE) * copies_bytes * moved_s, 0.0)


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
