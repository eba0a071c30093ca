"""A decoder-only model as its family describes it, and the walk that turns the description into layers and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trilemma.models.architecture import DenseFfn, Ffn, Layer
from trilemma.models.attention import (
    AttentionStyle,
    CompressedStyle,
    Mixer,
)
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.feed_forward import FfnStyle, dense_ffn, expert_ffn

PLAIN_ATTENTION = AttentionStyle()
PLAIN_FFN = FfnStyle()
PLAIN_OUTPUT = CompressedStyle()
#: Adds what a family has beside its mixer and feed-forward: called inside layer ``index``.
Extra = Callable[[Builder, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """One layer to build: what it is and the names of its norms; several mixers run side by side in Falcon-H1."""

    mixer: Mixer | None
    ffn: Ffn | None
    attention: AttentionStyle = PLAIN_ATTENTION
    ffn_style: FfnStyle = PLAIN_FFN
    mixer_norms: tuple[str, ...] = ("input_layernorm",)
    ffn_norms: tuple[str, ...] = ("post_attention_layernorm",)
    #: Name of a recurrent block in the checkpoint.
    recurrent_name: str = "mixer"
    recurrent_bias: bool = False
    conv_bias: bool = True
    gated_norm: bool = True
    latent_bias: bool = False
    #: A dense block beside the experts (Gemma 4 mixture layers).
    beside: DenseFfn | None = None
    compressed: CompressedStyle = PLAIN_OUTPUT


@dataclass(frozen=True, kw_only=True, slots=True)
class MtpPlan:
    """One multi-token-prediction module: its layers, what joins the embedding with the hidden state, and its norms.

    ``joined`` is the width of the joining projection's input in units of ``hidden``; norms are named as in the checkpoint.
    """

    layers: tuple[LayerPlan, ...]
    prefix: str
    layer_prefixes: tuple[str, ...]
    norms: tuple[str, ...] = ("enorm", "hnorm", "shared_head.norm")
    projection: str = "eh_proj"
    joined: int = 2
    extra: Callable[[Builder], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """What a family reader returns. Names follow the family's checkpoints, so that ignored modules can be matched.

    ``positions`` is the number of learned position rows (0: none); ``head_bias`` a bias on the output matrix;
    ``embedding_dim`` where embeddings are narrower than ``hidden``; no ``head`` where no token follows (encoders).
    """

    hidden: int
    vocab: int
    layers: Sequence[LayerPlan]
    max_positions: int | None = None
    tied: bool = False
    prefix: str = "model."
    layer_name: str = "layers"
    embedding: str = "embed_tokens"
    final_norm: str | None = "norm"
    head: str | None = "lm_head"
    head_bias: bool = False
    norm_bias: bool = False
    norm_weight: bool = True
    positions: int = 0
    position_name: str = "embed_positions"
    embedding_norm: str | None = None
    mtp: tuple[MtpPlan, ...] = ()
    extra: Extra | None = None
    outside: Callable[[Builder], None] | None = None
    #: Layers that borrow another layer's cache and the like, told to the reader of the result.
    notes: tuple[str, ...] = field(default=())


def build(add: Builder, plan: Decoder) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Add every tensor of ``plan`` and return its decoder layers and its MTP layers."""
    add.enter("embedding", plan.prefix)
    add.plain(f"{plan.embedding}.weight", "embedding", plan.vocab, plan.hidden, shard="vocab", units=plan.vocab)
    if plan.positions:
        add.plain(f"{plan.position_name}.weight", "embedding", plan.positions, plan.hidden)
    if plan.embedding_norm:
        add.norm(plan.embedding_norm, plan.hidden, bias=plan.norm_bias)
    if plan.outside is not None:
        plan.outside(add)
    layers = []
    for index, layer in enumerate(plan.layers):
        add.enter("layers", f"{plan.prefix}{plan.layer_name}.{index}.", index)
        _layer(add, plan, layer)
        if plan.extra is not None:
            plan.extra(add, index)
        layers.append(Layer(index=index, mixer=layer.mixer, ffn=layer.ffn))
    add.enter("head", plan.prefix)
    if plan.final_norm and plan.norm_weight:
        add.norm(plan.final_norm, plan.hidden, bias=plan.norm_bias)
    if not plan.tied and plan.head:
        add.enter("head", "")
        add.linear(plan.head, "head", plan.vocab, plan.hidden, shard="vocab", units=plan.vocab)
        if plan.head_bias:
            add.plain(f"{plan.head}.bias", "head", plan.vocab, shard="vocab", units=plan.vocab)
    return tuple(layers), _mtp(add, plan)


def _mtp(add: Builder, plan: Decoder) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for module in plan.mtp:
        add.enter("mtp", module.prefix, len(plan.layers) + len(layers))
        for name in module.norms:
            add.norm(name, plan.hidden)
        if module.projection:
            add.linear(module.projection, "mtp.projection", plan.hidden, module.joined * plan.hidden)
        if module.extra is not None:
            module.extra(add)
        for layer, prefix in zip(module.layers, module.layer_prefixes, strict=True):
            add.enter("mtp", prefix, len(plan.layers) + len(layers))
            _layer(add, plan, layer)
            layers.append(Layer(index=len(plan.layers) + len(layers), mixer=layer.mixer, ffn=layer.ffn))
    return tuple(layers)


def _layer(add: Builder, plan: Decoder, layer: LayerPlan) -> None:
    if layer.mixer is not None:
        if plan.norm_weight:
            for name in layer.mixer_norms:
                add.norm(name, plan.hidden, bias=plan.norm_bias)
        layer.mixer.add_tensors(add, plan.hidden, layer)
    if layer.ffn is not None:
        if plan.norm_weight:
            for name in layer.ffn_norms:
                add.norm(name, plan.hidden, bias=plan.norm_bias)
        if isinstance(layer.ffn, DenseFfn):
            dense_ffn(add, plan.hidden, layer.ffn, layer.ffn_style)
        else:
            expert_ffn(add, plan.hidden, layer.ffn, layer.ffn_style)
        if layer.beside is not None:
            dense_ffn(add, plan.hidden, layer.beside, layer.ffn_style)
