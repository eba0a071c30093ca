"""Pieces that vision towers are made of."""

from __future__ import annotations

from trilemma.models.architecture import Shard
from trilemma.models.blocks.builder import Builder
from trilemma.models.fields import Fields


def linear(
    add: Builder, name: str, out: int, width: int, *, shard: Shard = "none", units: int = 1, bias: bool = True
) -> None:
    """A matrix that a checkpoint may quantise, with its bias."""
    add.linear(name, "vision.linear", out, width, shard=shard, units=units, bias=bias)


def layer_norm(add: Builder, name: str, size: int) -> None:
    """A layer norm with weight and bias."""
    add.norm(name, size, bias=True)


def square_attention(
    add: Builder, name: str, hidden: int, heads: int, *, bias: bool = True, sharded: bool = True
) -> None:
    """Four square matrices, cut by heads."""
    for part in ("q_proj", "k_proj", "v_proj"):
        linear(add, f"{name}.{part}", hidden, hidden, shard="column" if sharded else "none", units=heads, bias=bias)
    linear(add, f"{name}.o_proj", hidden, hidden, shard="row" if sharded else "none", units=heads, bias=bias)


def two_matrices(add: Builder, name: str, hidden: int, size: int, *, bias: bool = True) -> None:
    """First and second matrix of a plain block."""
    linear(add, f"{name}.fc1", size, hidden, shard="column", units=size, bias=bias)
    linear(add, f"{name}.fc2", hidden, size, shard="row", units=size, bias=bias)


def three_matrices(add: Builder, name: str, hidden: int, size: int, *, bias: bool, sharded: bool = True) -> None:
    """Gate, up and down of a gated block."""
    for part in ("gate_proj", "up_proj"):
        linear(add, f"{name}.{part}", size, hidden, shard="column" if sharded else "none", units=size, bias=bias)
    linear(add, f"{name}.down_proj", hidden, size, shard="row" if sharded else "none", units=size, bias=bias)


def sizes(
    fields: Fields, *, depth: str = "num_hidden_layers", heads: str = "num_attention_heads", patch: int = 14,
    head_default: int = 16,
) -> dict[str, int]:  # fmt: skip
    """The sizes that every tower has: layers, hidden, heads, intermediate, patch, channels."""
    return {
        "layers": fields.layers(depth),
        "hidden": fields.count("hidden_size", "embed_dim", high=2**20),
        "heads": fields.count(heads, default=head_default, high=2**14, quiet=True),
        "intermediate": fields.count("intermediate_size", default=4304, quiet=True),
        "patch": first_of(fields, "patch_size", patch),
        "channels": fields.count("in_channels", "in_chans", "num_channels", default=3, high=64, quiet=True),
    }


def first_of(fields: Fields, key: str, default: int) -> int:
    """A size stated once or as a pair of equal ones."""
    value = fields.raw(key)
    if isinstance(value, list | tuple):
        pair = fields.counts(key, low=1, high=2**14)
        return pair[0] if pair else default
    return fields.count(key, default=default, high=2**14, quiet=True)


def projector(add: Builder, first: str, second: str, width: int, inner: int, out: int, *, bias: bool = True) -> None:
    """Two matrices from the tower to the text."""
    linear(add, first, inner, width, shard="column", units=inner, bias=bias)
    linear(add, second, out, inner, shard="row", units=inner, bias=bias)


def conv_patches(add: Builder, size: dict[str, int], *, bias: bool) -> None:
    """The convolution that turns patches into vectors."""
    shape = (size["hidden"], size["channels"], size["patch"], size["patch"])
    add.plain("embeddings.patch_embedding.weight", "vision.embedding", *shape)
    if bias:
        add.plain("embeddings.patch_embedding.bias", "vision.embedding", size["hidden"])
