"""Tensors of layers that keep a constant state: Mamba-2, gated delta net, Kimi delta attention, lightning attention.

Cut by heads under tensor parallelism, as in vllm/model_executor/layers/mamba/mamba_mixer2.py and the linear-attention
modules of its model files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trilemma.models.attention.recurrent import RecurrentState
    from trilemma.models.blocks.builder import Builder


def mamba1(
    add: Builder, hidden: int, state: RecurrentState, *, name: str, bias: bool = False, conv_bias: bool = True
) -> None:
    """Mamba (Gu and Dao 2023, arXiv 2312.00752) as Jamba has it, with norms on step size, B and C.

    Channels are the heads here (one column each); the step size passes through a rank of ``hidden / 16``.
    """
    inner, columns = state.heads, state.state_columns
    rank = state.key_heads
    add.linear(f"{name}.in_proj", "recurrent.in", 2 * inner, hidden, shard="column", units=inner, bias=bias)
    add.plain(f"{name}.conv1d.weight", "recurrent.conv", inner, 1, state.conv_width, shard="column", units=inner)
    if conv_bias:
        add.plain(f"{name}.conv1d.bias", "recurrent.conv", inner, shard="column", units=inner)
    add.linear(f"{name}.x_proj", "recurrent.in", rank + 2 * columns, inner, shard="row", units=inner)
    add.linear(f"{name}.dt_proj", "recurrent.in", inner, rank, shard="column", units=inner, bias=True)
    add.plain(f"{name}.A_log", "recurrent.state", inner, columns, shard="column", units=inner)
    add.plain(f"{name}.D", "recurrent.state", inner, shard="column", units=inner)
    for part, size in (("dt", rank), ("b", columns), ("c", columns)):
        add.norm(f"{name}.{part}_layernorm", size)
    add.linear(f"{name}.out_proj", "recurrent.out", hidden, inner, shard="row", units=inner, bias=bias)


def mamba2(
    add: Builder, hidden: int, state: RecurrentState, *, name: str, bias: bool = False, conv_bias: bool = True,
    gated_norm: bool = True,
) -> None:  # fmt: skip
    """Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): in_proj holds gate, convolved channels and one step size a head."""
    inner = state.heads * state.state_rows
    heads = state.heads
    rows = inner + state.conv_channels + heads
    add.linear(f"{name}.in_proj", "recurrent.in", rows, hidden, shard="column", units=heads, bias=bias)
    add.plain(
        f"{name}.conv1d.weight", "recurrent.conv", state.conv_channels, 1, state.conv_width, shard="column", units=heads
    )
    if conv_bias:
        add.plain(f"{name}.conv1d.bias", "recurrent.conv", state.conv_channels, shard="column", units=heads)
    for part in ("A_log", "D", "dt_bias"):
        add.plain(f"{name}.{part}", "recurrent.state", heads, shard="column", units=heads)
    if gated_norm:
        add.norm(f"{name}.norm", inner, shard="column", units=heads)
    add.linear(f"{name}.out_proj", "recurrent.out", hidden, inner, shard="row", units=heads, bias=bias)


def gated_delta_net(add: Builder, hidden: int, state: RecurrentState, *, name: str = "linear_attn") -> None:
    """Gated delta net as in Qwen3-Next and Qwen3.5: q, k, v and the gate z, two scalars a value head, a short convolution."""
    keys, values = state.key_heads * state.state_rows, state.heads * state.state_columns
    add.linear(f"{name}.in_proj_qkv", "recurrent.in", 2 * keys + values, hidden, shard="column", units=state.key_heads)
    add.linear(f"{name}.in_proj_z", "recurrent.in", values, hidden, shard="column", units=state.heads)
    for part in ("in_proj_b", "in_proj_a"):
        add.linear(f"{name}.{part}", "recurrent.in", state.heads, hidden, shard="column", units=state.heads)
    add.plain(
        f"{name}.conv1d.weight", "recurrent.conv", state.conv_channels, 1, state.conv_width,
        shard="column", units=state.key_heads,
    )  # fmt: skip
    for part in ("A_log", "dt_bias"):
        add.plain(f"{name}.{part}", "recurrent.state", state.heads, shard="column", units=state.heads)
    add.norm(f"{name}.norm", state.state_columns)
    add.linear(f"{name}.out_proj", "recurrent.out", hidden, values, shard="row", units=state.heads)


def kimi_delta(add: Builder, hidden: int, state: RecurrentState, *, name: str = "self_attn") -> None:
    """Kimi delta attention (Kimi Linear, arXiv 2510.26692): three projections with a convolution each, low-rank gates.

    The low-rank halves f_a and g_a are whole on every rank (vllm/model_executor/models/kimi_linear.py).
    """
    heads, dim = state.heads, state.state_columns
    inner = heads * dim
    for part in ("q", "k", "v"):
        add.linear(f"{name}.{part}_proj", "recurrent.in", inner, hidden, shard="column", units=heads)
        add.plain(
            f"{name}.{part}_conv1d.weight", "recurrent.conv", inner, 1, state.conv_width, shard="column", units=heads
        )
    add.plain(f"{name}.A_log", "recurrent.state", heads, shard="column", units=heads)
    add.plain(f"{name}.dt_bias", "recurrent.state", inner, shard="column", units=heads)
    for part in ("f", "g"):
        add.linear(f"{name}.{part}_a_proj", "recurrent.in", dim, hidden)
        add.linear(f"{name}.{part}_b_proj", "recurrent.in", inner, dim, shard="column", units=heads)
    add.linear(f"{name}.b_proj", "recurrent.in", heads, hidden, shard="column", units=heads)
    add.norm(f"{name}.o_norm", dim)
    add.linear(f"{name}.o_proj", "recurrent.out", hidden, inner, shard="row", units=heads)


def lightning(add: Builder, hidden: int, state: RecurrentState, *, name: str = "self_attn") -> None:
    """Lightning attention (MiniMax-01, arXiv 2501.08313): q, k, v in one matrix, an output gate and a norm."""
    heads = state.heads
    inner = heads * state.state_columns
    add.linear(f"{name}.qkv_proj", "recurrent.in", 3 * inner, hidden, shard="column", units=heads)
    add.linear(f"{name}.output_gate", "recurrent.in", inner, hidden, shard="column", units=heads)
    add.norm(f"{name}.norm", inner, shard="column", units=heads)
    add.linear(f"{name}.out_proj", "recurrent.out", hidden, inner, shard="row", units=heads)
