"""A Llama-like decoder as a function of its weights, one layer at a time, so that a measurement holds one layer in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch.nn import functional

from trilemma.precision.decoder_shape import DecoderShape

Tensor: TypeAlias = torch.Tensor
#: Sees what enters a product (``qkv``, ``o``, ``gate_up``, ``down``, ``head``) or the cache (``k``, ``v``) and gives back
#: what takes its place.
Cast: TypeAlias = Callable[[str, Tensor], Tensor]


def unchanged(_: str, values: Tensor) -> Tensor:
    """The cast that casts nothing."""
    return values


def rotations(shape: DecoderShape, tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary positions (Su et al. 2021), each (tokens, head_dim / 2).

    ``rope_factors`` stretch the low frequencies as Llama 3.1 does (transformers modeling_rope_utils.py, llama3).
    """
    half = shape.head_dim // 2
    frequency = shape.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    if shape.rope_factors is not None:
        factor, low, high, original = shape.rope_factors
        turns = original * frequency / (2 * math.pi)
        blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        frequency = blend * frequency + (1 - blend) * frequency / factor
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def apply_layer(
    x: Tensor,
    weights: Mapping[str, Tensor],
    shape: DecoderShape,
    rotation: tuple[Tensor, Tensor],
    cast: Cast = unchanged,
) -> Tensor:
    """One decoder layer: x (batch, tokens, hidden) → the same shape; ``weights`` by name within the layer."""
    x = x + _attention(normed(x, weights["input_layernorm.weight"], shape), weights, shape, rotation, cast)
    inner = cast("gate_up", normed(x, weights["post_attention_layernorm.weight"], shape))
    gate = functional.linear(inner, weights["mlp.gate_proj.weight"])
    gated = functional.silu(gate) * functional.linear(inner, weights["mlp.up_proj.weight"])
    return x + functional.linear(cast("down", gated), weights["mlp.down_proj.weight"])


def normed(x: Tensor, gain: Tensor, shape: DecoderShape) -> Tensor:
    """RMSNorm over the last dimension."""
    return functional.rms_norm(x, (x.shape[-1],), gain, shape.norm_eps)


def apply_head(x: Tensor, gain: Tensor, matrix: Tensor, shape: DecoderShape, cast: Cast = unchanged) -> Tensor:
    """x (…, hidden) → logits (…, vocab)."""
    return functional.linear(cast("head", normed(x, gain, shape)), matrix)


def _attention(
    x: Tensor, weights: Mapping[str, Tensor], shape: DecoderShape, rotation: tuple[Tensor, Tensor], cast: Cast
) -> Tensor:
    batch, tokens, _ = x.shape
    x = cast("qkv", x)

    def projected(name: str, heads: int) -> Tensor:
        flat = functional.linear(
            x, weights[f"self_attn.{name}_proj.weight"], weights.get(f"self_attn.{name}_proj.bias")
        )
        return flat.view(batch, tokens, heads, shape.head_dim)

    query, key, value = projected("q", shape.heads), projected("k", shape.kv_heads), projected("v", shape.kv_heads)
    if shape.qk_norm:
        query = normed(query, weights["self_attn.q_norm.weight"], shape)
        key = normed(key, weights["self_attn.k_norm.weight"], shape)
    query, key = _rotated(query, rotation), _rotated(key, rotation)
    key, value = cast("k", key), cast("v", value)
    mixed = functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    flat = mixed.transpose(1, 2).reshape(batch, tokens, shape.heads * shape.head_dim)
    return functional.linear(cast("o", flat), weights["self_attn.o_proj.weight"])


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = (part[:, None, :] for part in rotation)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
