"""The tiny transformer of the lab: pre-norm, SwiGLU, learned positions, every linear layer through `Numerics`."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional

from trilemma.precision.lab.numerics import LowPrecisionProduct, Numerics
from trilemma.precision.lab.recipes import Scope
from trilemma.precision.lab.records import Regime

Tensor: TypeAlias = torch.Tensor

_INIT_STD = 0.04
#: Channels that `make_outliers` enlarges.
_OUTLIER_CHANNELS = (3, 29)


class Linear(nn.Module):
    """A layer without bias whose products run as its run's recipe says."""

    def __init__(self, inputs: int, outputs: int, *, layer: str, numerics: Numerics, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * std)
        self.layer, self.numerics = layer, numerics

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        flat = LowPrecisionProduct.apply(x.reshape(-1, x.shape[-1]), self.weight, self.layer, self.numerics)
        return flat.view(*x.shape[:-1], -1)


class Norm(nn.Module):
    """RMSNorm with a gain per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Block(nn.Module):
    """Attention and a gated feed-forward network, each behind a norm and beside a residual connection."""

    def __init__(self, regime: Regime, index: int, numerics: Numerics) -> None:
        super().__init__()
        width, hidden = regime.width, 2 * regime.width
        out_std = _INIT_STD / math.sqrt(2 * regime.layers)
        name = f"block{index}"
        self.heads = regime.heads
        self.attention_norm, self.mlp_norm = Norm(width), Norm(width)
        self.qkv = Linear(width, 3 * width, layer=f"{name}.attention.qkv", numerics=numerics, std=_INIT_STD)
        self.out = Linear(width, width, layer=f"{name}.attention.out", numerics=numerics, std=out_std)
        self.gate_up = Linear(width, 2 * hidden, layer=f"{name}.mlp.gate_up", numerics=numerics, std=_INIT_STD)
        self.down = Linear(hidden, width, layer=f"{name}.mlp.down", numerics=numerics, std=out_std)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class TinyTransformer(nn.Module):
    """Characters in, mean cross-entropy of the next character out. Embeddings and norms stay in FP32."""

    def __init__(self, regime: Regime, vocabulary: int, numerics: Numerics) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, regime.width)
        self.positions = nn.Embedding(regime.context, regime.width)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, 0, _INIT_STD)
        self.blocks = nn.ModuleList(Block(regime, index, numerics) for index in range(regime.layers))
        self.norm = Norm(regime.width)
        self.head = Linear(regime.width, vocabulary, layer="head", numerics=numerics, std=_INIT_STD / 2)

    def forward(self, characters: Tensor, following: Tensor) -> Tensor:
        """characters, following: (batch, tokens) → the loss."""
        x = self.characters(characters) + self.positions.weight[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), following.reshape(-1))


def make_outliers(model: TinyTransformer, gain: float) -> None:
    """Multiply two channels of every norm by ``gain`` and divide the weights that read them: the function stays as it is.

    The inverse of SmoothQuant (arXiv:2211.10438): it moves unevenness from weights into activations.
    """
    readers: list[tuple[Norm, Linear]] = [(model.norm, model.head)]
    for block in model.blocks:
        assert isinstance(block, Block)
        readers += [(block.attention_norm, block.qkv), (block.mlp_norm, block.gate_up)]
    with torch.no_grad():
        for norm, reader in readers:
            for channel in _OUTLIER_CHANNELS:
                norm.weight[channel] *= gain
                reader.weight[:, channel] /= gain


def spared_layers(model: TinyTransformer, scope: Scope) -> list[str]:
    """Names of the linear layers that a recipe of ``scope`` keeps in BF16."""
    names = [module.layer for module in model.modules() if isinstance(module, Linear)]
    last = f"block{len(model.blocks) - 1}."
    match scope:
        case "attention":
            return [name for name in names if ".attention." not in name]
        case "all but head":
            return ["head"]
        case "all but head and ends":
            return [name for name in names if name == "head" or name.startswith(("block0.", last))]
        case _:
            return []


def low_precision_share(model: TinyTransformer, spared: list[str]) -> float:
    """Share of the arithmetic of all linear layers that ``spared`` leaves in low precision."""
    sizes = {module.layer: module.weight.numel() for module in model.modules() if isinstance(module, Linear)}
    return 1 - sum(sizes[name] for name in spared) / sum(sizes.values())
