"""Which tensors one decoder layer keeps for its backward pass, by implementation.

Autograd keeps inputs of matrix products whose other factor needs a gradient, inputs or outputs of pointwise operations and
what normalisation and attention kernels save. Two implementations of one model differ by a factor of three, so the set is
named tensor by tensor; a storage that two operations share stands here once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from trilemma.memory.layer_facts import LayerFacts
from trilemma.memory.traits import BlockTraits
from trilemma.models.architecture import DenseFfn, ExpertFfn
from trilemma.models.attention import CompressedAttention, LatentAttention, RecurrentState, SoftmaxAttention

#: How tensor parallelism cuts a saved tensor: along the sequence (where sequence parallelism is on), along heads or
#: columns, not at all.
Cut = Literal["sequence", "units", "whole"]
#: What a tensor has a row for: a token, a token sent to an expert, a pair of tokens, a layer.
Per = Literal["token", "routed", "pair", "layer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTensor:
    """One storage kept from forward to backward.

    ``width`` elements of ``bits`` for each row; ``bits`` None stands for the format of activations. ``units`` are what
    tensor parallelism never splits (heads, columns). ``needed_by`` are roles of weights whose gradient needs it (empty:
    needed whatever is trained). ``parts`` are the names of selective recompute that drop it; ``op`` marks what op-level
    selective recompute keeps; ``pointwise`` what a compiler recomputes from other saved tensors; ``fp8`` what low-precision
    training keeps in the narrow format; ``copy`` a copy of an FP32 tensor, which FP32 training does not make.
    """

    name: str
    width: float
    bits: float | None = None
    cut: Cut = "sequence"
    units: int = 1
    per: Per = "token"
    needed_by: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    op: bool = False
    pointwise: bool = False
    fp8: bool = False
    copy: bool = False


def layer_tensors(facts: LayerFacts, traits: BlockTraits, *, attention: str) -> tuple[SavedTensor, ...]:
    """What one decoder layer keeps without any recompute.

    ``attention``: flash, sdpa, eager, or math (what sdpa falls back to on CPU for heads of two widths).
    """
    found: list[SavedTensor] = []
    mixer, ffn = facts.mixer, facts.ffn
    if mixer is not None:
        found += _norm("input_norm", facts, traits, roles=facts.mixer_roles)
        match mixer:
            case SoftmaxAttention():
                found += _softmax_attention(mixer, facts, traits, attention)
            case LatentAttention():
                found += _latent_attention(mixer, facts, traits, attention)
            case RecurrentState():
                found += _recurrent(mixer)
            case CompressedAttention():
                found += _compressed(facts)
            case _:
                assert_never(mixer)
    if ffn is not None:
        # Halves side by side share one norm and so one input.
        if mixer is None or facts.norms > 1:
            second = _norm("post_norm", facts, traits, roles=facts.ffn_roles)
            found += [one for one in second if not (traits.shared_norm_input and one.name == "post_norm.input")]
        if isinstance(ffn, DenseFfn):
            found += _dense(ffn.intermediate, ffn.gated, traits, role="ffn", part="mlp")
        else:
            found += _experts(ffn, facts, traits)
    if traits.hidden_dropout:
        found.append(SavedTensor(name="dropout_masks", width=2 * facts.hidden, bits=8))
    for extra in range(max(facts.norms - 2, 0)):
        found += _norm(f"sandwich_norm_{extra}", facts, traits, roles=(), feeds=False)
    return tuple(found)


def _norm(
    name: str, facts: LayerFacts, traits: BlockTraits, *, roles: Sequence[str], feeds: bool = True
) -> list[SavedTensor]:
    """A normalisation of the hidden state and its output, the shared input of the products that follow."""
    hidden = facts.hidden
    found = normalisation(name, hidden, traits, layer_norm=facts.layer_norm)
    if feeds:
        found.append(
            SavedTensor(
                name=f"{name}.output",
                width=hidden * (max(len(roles), 1) if traits.own_inputs else 1),
                cut="whole" if traits.gathered_inputs else "sequence",
                needed_by=tuple(roles),
                parts=("layernorm",),
                fp8=True,
            )
        )
    return found


def normalisation(
    name: str,
    width: int,
    traits: BlockTraits,
    *,
    layer_norm: bool,
    rows: int = 1,
    cut: Cut = "sequence",
    units: int = 1,
) -> list[SavedTensor]:
    """What a normalisation over ``width`` elements keeps, ``rows`` of them a token.

    A fused kernel keeps its input and one or two FP32 statistics. RMSNorm written in PyTorch keeps an FP32 copy of the
    input, the statistic, and the normalised value in the format of the weight (for the weight's gradient).
    """
    total = width * rows
    if traits.norm == "fused" or layer_norm:
        return [
            SavedTensor(name=f"{name}.input", width=total, bits=traits.residual_bits, cut=cut, units=units),
            SavedTensor(
                name=f"{name}.statistics", width=rows * (2 if layer_norm else 1), bits=32, cut=cut, units=units
            ),
        ]
    return [
        SavedTensor(name=f"{name}.fp32_input", width=total * traits.norm_copies, bits=32, cut=cut, units=units),
        SavedTensor(name=f"{name}.statistics", width=rows, bits=32, cut=cut, units=units),
        SavedTensor(
            name=f"{name}.normalised",
            width=total,
            bits=32 if traits.wide_norm else None,
            needed_by=("norm",),
            cut=cut,
            units=units,
            pointwise=True,
        ),
    ]


def _softmax_attention(
    mixer: SoftmaxAttention, facts: LayerFacts, traits: BlockTraits, attention: str
) -> list[SavedTensor]:
    heads, kv = mixer.heads, mixer.kv_heads
    found: list[SavedTensor] = []
    if facts.qk_norm:
        found += normalisation("q_norm", mixer.k_dim, traits, layer_norm=False, rows=heads, cut="units", units=heads)
        found += normalisation("k_norm", mixer.k_dim, traits, layer_norm=False, rows=kv, cut="units", units=kv)
    if traits.fused_qkv:
        raw = (heads + kv) * mixer.k_dim
        found.append(SavedTensor(name="query_key_unrotated", width=raw, cut="units", units=kv))
        found.append(SavedTensor(name="output_input", width=heads * mixer.v_dim, cut="units", units=heads))
    # Eager attention multiplies against K and V repeated for every query head.
    held = heads if attention == "eager" else kv
    found += [
        SavedTensor(name="query", width=heads * mixer.k_dim, cut="units", units=heads, op=True),
        SavedTensor(name="key", width=held * mixer.k_dim, cut="units", units=held),
        SavedTensor(name="value", width=held * mixer.v_dim, cut="units", units=held, op=True),
    ]
    return found + _attention_core(heads, heads * mixer.v_dim, attention, traits, role="attention.o")


def _attention_core(heads: int, out: int, attention: str, traits: BlockTraits, *, role: str) -> list[SavedTensor]:
    """Output (which is the input of the output projection) and what softmax keeps.

    FlashAttention (Dao et al. 2022, section 3.1) keeps one FP32 log-sum-exp a head and token; eager attention the FP32
    probabilities and their copy in the format of activations, or a fused softmax its 16-bit output alone.
    """
    output = SavedTensor(name="attention_output", width=out, cut="units", units=heads, op=True, fp8=True)
    if attention in ("flash", "sdpa"):
        lse = SavedTensor(
            name="log_sum_exp", width=heads, bits=32, cut="units", units=heads, parts=("core_attn",), op=True
        )
        return [output, lse]
    if traits.attention_dropout or traits.fused_softmax:
        # Softmax's output in 16 bits; under dropout its mask and the dropped output too: 5 bytes a pair of tokens and head.
        copies = 2.5 if traits.attention_dropout else 1.0
        probabilities = SavedTensor(
            name="probabilities",
            width=copies * heads,
            bits=16,
            cut="units",
            units=heads,
            per="pair",
            parts=("core_attn",),
        )
        return [output, probabilities]
    pair = SavedTensor(
        name="probabilities", width=heads, cut="units", units=heads, per="pair", parts=("core_attn",), copy=True
    )
    found = [
        SavedTensor(name="output_input", width=out, cut="units", units=heads, needed_by=(role,)),
        replace(pair, name="probabilities_fp32", bits=32, copy=False),
    ]
    if traits.soft_cap:
        found.append(replace(pair, name="capped_scores", copy=False))
    return found if attention == "math" else [*found, pair]


def _latent_attention(
    mixer: LatentAttention, facts: LayerFacts, traits: BlockTraits, attention: str
) -> list[SavedTensor]:
    """MLA unpacked into heads, as it is trained (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
    heads, qk = mixer.heads, mixer.nope_dim + mixer.rope_dim
    up = ("mla_up_proj",)
    # Without a kernel for heads of two widths (CPU), scores and their factors are materialised in FP32.
    wide = 32 if attention == "math" else None
    found: list[SavedTensor] = []
    if mixer.q_rank is not None:
        found += normalisation("query_latent_norm", mixer.q_rank, traits, layer_norm=facts.layer_norm)
        found.append(SavedTensor(name="query_latent", width=mixer.q_rank, needed_by=("mla.q_b",), fp8=True))
    # A fused kernel keeps the storage that it reads, rope keys included.
    kv_width = mixer.kv_rank + (mixer.rope_dim if traits.norm == "fused" else 0)
    found += normalisation("kv_latent_norm", kv_width, traits, layer_norm=facts.layer_norm)
    found += [
        SavedTensor(name="kv_latent", width=mixer.kv_rank, needed_by=("mla.kv_b",), fp8=True),
        SavedTensor(name="query", width=heads * qk, bits=wide, cut="units", units=heads, parts=up, op=True),
        SavedTensor(name="key", width=heads * qk, bits=wide, cut="units", units=heads, parts=up),
        SavedTensor(name="value", width=heads * mixer.v_dim, bits=wide, cut="units", units=heads, parts=up, op=True),
    ]
    return found + _attention_core(heads, heads * mixer.v_dim, attention, traits, role="mla.o")


def _recurrent(mixer: RecurrentState) -> list[SavedTensor]:
    """Mamba and linear attention: projected input, convolved part, gate, output, and chunk states in FP32.

    mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn: it saves the projection, the scan's output and
    one state per chunk of 256 tokens, and computes the convolution again.
    """
    inner = mixer.heads * mixer.state_columns if mixer.kind != "mamba2" else mixer.heads * mixer.state_rows
    state = mixer.heads * mixer.state_rows * mixer.state_columns / 256
    inside = SavedTensor(name="scan_output", width=inner, cut="units", units=mixer.heads)
    return [
        replace(inside, name="projected", width=inner + mixer.conv_channels + mixer.heads, op=True),
        inside,
        replace(inside, name="output_input"),
        replace(inside, name="chunk_states", width=state, bits=32),
    ]


def _compressed(facts: LayerFacts) -> list[SavedTensor]:
    """Compressed attention (DeepSeek-V4): no implementation that trains it is public; counted as its projections' inputs."""
    return [SavedTensor(name="compressed_attention", width=6 * facts.hidden, cut="whole")]


def _dense(
    intermediate: int, gated: bool, traits: BlockTraits, *, role: str, part: str, routed: int = 0
) -> list[SavedTensor]:
    """Pre-activation(s), the activation where it is a tensor of its own, and the input of the down projection.

    ``routed`` experts see each token; 0 stands for a block that every token passes once.
    """
    width = intermediate * (routed or 1)
    parts = ("moe", "moe_act") if routed else (part, *(("moe",) if part == "shared_experts" else ()))
    inside = parts if not routed else ("moe",)
    before = SavedTensor(
        name="", width=width, cut="units", units=intermediate, per="routed" if routed else "token", parts=inside
    )
    if gated:
        found = [replace(before, name=f"{role}.gate", op=True), replace(before, name=f"{role}.up")]
        if traits.gated == "separate":
            found.append(replace(before, name=f"{role}.activated", pointwise=True))
    else:
        found = [replace(before, name=f"{role}.pre_activation", width=width * traits.activation_copies, op=True)]
    after = replace(
        before, name=f"{role}.down_input", parts=parts, needed_by=(f"{role}.down",), pointwise=True, fp8=True
    )
    return [*found, after]


def _experts(ffn: ExpertFfn, facts: LayerFacts, traits: BlockTraits) -> list[SavedTensor]:
    """Router, the rows sent to experts, what experts keep, the rows they return, the shared block."""
    width, top_k = ffn.hidden or facts.hidden, ffn.experts if traits.every_expert else min(ffn.top_k, ffn.experts)
    found = [
        SavedTensor(name="router.scores", width=ffn.experts, bits=32 * traits.router_copies, parts=("moe",)),
        SavedTensor(name="router.choices", width=traits.routed_scalars * top_k, bits=32, per="routed", parts=("moe",)),
        SavedTensor(name="experts.input", width=width * top_k, per="routed", parts=("moe",), fp8=True,
                    needed_by=("experts.up", "experts.gate")),
    ]  # fmt: skip
    found += _dense(ffn.intermediate, ffn.gated, traits, role="experts", part="moe", routed=top_k)
    if traits.returned_rows:
        found.append(
            SavedTensor(name="experts.output", width=width * top_k * traits.returned_rows, per="routed", parts=("moe",))
        )
    if traits.wide_router:
        found.append(SavedTensor(name="router.fp32_input", width=facts.hidden, bits=32, needed_by=("router",)))
    if ffn.shared_intermediate:
        found += _dense(ffn.shared_intermediate, ffn.gated, traits, role="shared", part="shared_experts")
    if ffn.hidden is not None:
        found.append(SavedTensor(name="latent_input", width=2 * width, parts=("moe",)))
    return found
