"""Layers that keep a state instead of a cache (Mamba-2, gated delta networks): decode moves it, prefill works in chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.kernels.fitted import KernelCoefficients, Parameter
from trilemma.timing.kernels.shapes import MICRO, rounded_max

PARAMETERS = (
    Parameter(name="compute_share", start=0.2, low=0.002, high=1.0, meaning="share of the dense peak in long prompts"),
    Parameter(name="stream_share", start=0.6, low=0.02, high=4.0, meaning="share of bandwidth for states and activations"),
    Parameter(name="fixed_us", start=8.0, low=0.1, high=300.0, meaning="microseconds of any launch"),
    Parameter(name="chunk_us", start=0.5, low=0.0, high=30.0, meaning="microseconds of one chunk after another"),
    Parameter(name="sequence_us", start=0.005, low=0.0, high=100.0, meaning="microseconds of one sequence and 1024 channels"),
    Parameter(name="overlap_power", start=2.0, low=1.0, high=20.0, meaning="norm that joins arithmetic and memory"),
)  # fmt: skip

_ACTIVATION_BYTES = 2.0
_STATE_BYTES = 4.0
_CHANNELS = 1024.0
#: Tokens of one chunk (Dao and Gu 2024, section 6; flash-linear-attention chunk_gated_delta_rule).
_CHUNK = 64.0


def state_decode_s(c: KernelCoefficients, batch: Numbers, heads: Numbers, key_dim: Numbers, value_dim: Numbers) -> Any:
    """Seconds of one layer's recurrent step: each sequence reads and writes ``heads`` states of ``key_dim × value_dim``.

    Numbers or arrays that broadcast. States of 32 bits move twice, ``6·key_dim·value_dim`` FLOPs a head: decay, outer
    product, read-out (Dao and Gu 2024; Yang et al. 2024).
    """
    batch, heads, key_dim, value_dim = (np.asarray(x, dtype=float) for x in (batch, heads, key_dim, value_dim))
    state = batch * heads * key_dim * value_dim
    n_bytes = 2 * _STATE_BYTES * state + _ACTIVATION_BYTES * batch * heads * (2 * key_dim + 2 * value_dim)
    widths = batch * heads * value_dim / _CHANNELS
    return _time_s(c, flops=6 * state, n_bytes=n_bytes, chunks=0.0, widths=widths)


def state_prefill_s(
    c: KernelCoefficients, batch: Numbers, tokens: Numbers, heads: Numbers, key_dim: Numbers, value_dim: Numbers
) -> Any:
    """Seconds of one layer's chunked scan over ``batch`` prompts of ``tokens`` tokens.

    A chunk of 64 tokens costs ``2·64·(3·key_dim + 2·value_dim)`` FLOPs a token and head inside it and ``4·key·value`` with
    the state (Yang et al. 2024, Gated Delta Networks, section 3.3); chunks of one prompt follow one another.

    Numbers or arrays that broadcast.
    """
    batch, tokens, heads, key_dim, value_dim = (
        np.asarray(x, dtype=float) for x in (batch, tokens, heads, key_dim, value_dim)
    )
    per_token = 2 * _CHUNK * (3 * key_dim + 2 * value_dim) + 4 * key_dim * value_dim
    chunks = np.ceil(tokens / _CHUNK)
    n_bytes = batch * heads * (_ACTIVATION_BYTES * tokens * (4 * key_dim + 6 * value_dim))
    n_bytes = n_bytes + batch * heads * chunks * 2 * _STATE_BYTES * key_dim * value_dim
    flops = batch * heads * chunks * _CHUNK * per_token
    return _time_s(c, flops=flops, n_bytes=n_bytes, chunks=chunks, widths=batch * heads * value_dim / _CHANNELS)


def convolution_s(c: KernelCoefficients, batch: Numbers, tokens: Numbers, channels: Numbers) -> Any:
    """Seconds of the short causal convolution before the scan: ``tokens`` of each of ``batch`` prompts, read and written once.

    Numbers or arrays that broadcast. Source: causal-conv1d's causal_conv1d_fwd.cu keeps its few taps in registers, so
    channels move once each way (Dao and Gu 2024).
    """
    batch, tokens, channels = (np.asarray(x, dtype=float) for x in (batch, tokens, channels))
    moved = 2 * _ACTIVATION_BYTES * batch * tokens * channels
    return _time_s(c, flops=0.0, n_bytes=moved, chunks=0.0, widths=batch * channels / _CHANNELS)


def _time_s(c: KernelCoefficients, *, flops: Any, n_bytes: Any, chunks: Any, widths: Any) -> Any:
    compute_s = flops / (c["compute_share"] * c.flops_per_s)
    memory_s = n_bytes / (c["stream_share"] * c.bytes_per_s) + c["sequence_us"] * MICRO * widths
    joined = rounded_max(compute_s, memory_s, c["overlap_power"])
    return (c["fixed_us"] + c["chunk_us"] * chunks) * MICRO + joined
