"""Readings that many families share: heads, windows, mixtures, multi-token-prediction modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.models.architecture import DenseFfn
from trilemma.models.attention import Mixer, SoftmaxAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan, MtpPlan
from trilemma.models.fields import Fields

WIDEST = 2**20
MOST_HEADS = 2**14
MOST_EXPERTS = 2**14


def hidden_size(fields: Fields) -> int:
    return fields.agreed("hidden_size", "n_embd", "d_model", high=WIDEST)


def vocabulary(fields: Fields, *, default: int | None = None) -> int:
    if default is not None:
        return fields.count("vocab_size", default=default)
    return fields.count("vocab_size")


def max_positions(fields: Fields) -> int | None:
    return fields.optional_count(
        "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len", "model_max_length",
        high=2**40,
    )  # fmt: skip


def tied(fields: Fields, *, default: bool = False) -> bool:
    """Whether the output matrix is the embedding; an absent key means the default of the family."""
    return fields.flag("tie_word_embeddings", default=default, quiet=not default)


def heads(fields: Fields) -> int:
    return fields.agreed("num_attention_heads", "n_head", "n_heads", "num_heads", high=MOST_HEADS)


def softmax(
    fields: Fields,
    *,
    kv_default: int | None = None,
    head_default: int | None = None,
    window: int | None = None,
    chunk: int | None = None,
    sinks: bool = False,
) -> SoftmaxAttention:
    """Attention from ``num_attention_heads``, ``num_key_value_heads`` and ``head_dim`` (default: hidden over heads)."""
    query = heads(fields)
    kv = fields.count(
        "num_key_value_heads", "num_kv_heads", default=kv_default or query, high=MOST_HEADS, quiet=not kv_default
    )
    size = head_dim(fields, query, default=head_default)
    if kv > query or query % kv:
        raise InputError(
            f"{fields.label('num_key_value_heads')} is {kv}, which does not divide the {query} attention heads"
        )
    return SoftmaxAttention(heads=query, kv_heads=kv, k_dim=size, v_dim=size, window=window, chunk=chunk, sinks=sinks)


def head_dim(fields: Fields, query: int, *, default: int | None = None) -> int:
    stated = fields.optional_count("head_dim", "attention_head_dim", "kv_channels", high=2**14)
    if stated is not None:
        return stated
    if default is not None:
        fields.assume(f"head_dim is not given; taken as {default}, the default of {fields.family}")
        return default
    hidden = hidden_size(fields)
    if hidden < query:
        raise InputError(
            f"{fields.label('hidden_size')} is {hidden}, less than the {query} attention heads; give head_dim"
        )
    if hidden % query:
        raise InputError(
            f"{fields.label('hidden_size')} is {hidden}, no multiple of the {query} attention heads; give head_dim"
        )
    return hidden // query


def window(fields: Fields, *, on: bool = True) -> int | None:
    """``sliding_window`` unless ``use_sliding_window`` (absent: ``on``) forbids it; 0 and less mean none."""
    size = fields.optional_count("sliding_window", "sliding_window_size", low=-1, high=2**40)
    if size is None or size <= 0 or not fields.flag("use_sliding_window", default=on):
        return None
    return size


def windowed(fields: Fields, layers: int, *, full: Mixer, sliding: Mixer, default: Sequence[str]) -> list[Mixer]:
    """One mixer a layer by ``layer_types`` (default as given): full_attention or sliding_attention."""
    known = {"sliding_attention": sliding, "full_attention": full}
    return kinds(fields.layer_types(layers, default), known, fields, "layer_types")


def every(period: int, layers: int) -> list[str]:
    """Full attention on every ``period``-th layer, sliding attention on the others."""
    return ["full_attention" if (index + 1) % period == 0 else "sliding_attention" for index in range(layers)]


def state_format(fields: Fields) -> str:
    """The format of a recurrent state: what the configuration states, else that of the model (as vLLM's "auto")."""
    stated = fields.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    return catalogue.get(stated).name if stated not in ("", "auto") else fields.dtype


def intermediate(fields: Fields) -> int:
    return fields.count("intermediate_size", "n_inner", "ffn_dim", high=2**24)


def dense(fields: Fields, *, gated: bool = True) -> DenseFfn:
    return DenseFfn(intermediate=intermediate(fields), gated=gated)


def experts_per_token(fields: Fields, *keys: str, default: int | None = None) -> int:
    names = keys or ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
    if default is not None:
        return fields.count(*names, default=default, high=MOST_EXPERTS)
    return fields.count(*names, high=MOST_EXPERTS)


def routing_groups(fields: Fields) -> tuple[int, int]:
    """(groups, top groups) of an `ExpertFfn`: to how many groups of experts the router limits a token; (1, 1) for no limit.

    ``topk_method: greedy`` (DeepSeek-V2-Lite) states groups and does not use them.
    """
    groups = fields.count("n_group", "num_expert_group", default=1, high=MOST_EXPERTS, quiet=True)
    chosen = fields.count("topk_group", default=1, high=MOST_EXPERTS, quiet=True)
    if groups == 1 or fields.text("topk_method") == "greedy":
        return 1, 1
    return groups, chosen


def deepseek_mtp(plan: LayerPlan, *, layers: int, modules: int, prefix: str = "model.layers.") -> tuple[MtpPlan, ...]:
    """Modules stored as further layers: two norms, a joining projection, one decoder layer and a norm of their own.

    Copies of the embedding and the output matrix that checkpoints hold in them are shared by engines and left out.
    """
    return tuple(
        MtpPlan(layers=(plan,), prefix=f"{prefix}{layers + number}.", layer_prefixes=(f"{prefix}{layers + number}.",))
        for number in range(modules)
    )


def llama_like(fields: Fields, plans: Sequence[LayerPlan], *, tie: bool = False, **more: Any) -> Decoder:
    """A decoder whose outer parts are Llama's; ``tie`` is the family's default of ``tie_word_embeddings``."""
    return Decoder(
        hidden=hidden_size(fields),
        vocab=vocabulary(fields),
        layers=plans,
        max_positions=max_positions(fields),
        tied=tied(fields, default=tie),
        **more,
    )


def kinds(values: Sequence[Any], allowed: dict[str, Any], fields: Fields, key: str) -> list[Any]:
    """Each of ``values`` looked up in ``allowed``; raises `InputError` for a kind that is not known."""
    found = []
    for value in values:
        if value not in allowed:
            raise InputError(f"{fields.label(key)} holds {value!r}; known kinds are {', '.join(map(repr, allowed))}")
        found.append(allowed[value])
    return found
