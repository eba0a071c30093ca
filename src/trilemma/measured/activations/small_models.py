"""A configuration made small: the same family and proportions, few layers, narrow, a short vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.errors import InputError

_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads",)
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "n_inner", "ffn_dim",
           "q_lora_rank", "kv_lora_rank")  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token")
_VOCAB = ("vocab_size",)
#: Token ids that must lie inside the vocabulary.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def shrink(config: dict[str, Any], *, layers: int = 2, hidden: int = 256, vocab: int = 2048) -> dict[str, Any]:
    """``config`` with at most ``layers`` layers, about ``hidden`` wide, ``vocab`` rows.

    Heads fall in proportion and keep their width and the ratio of query to KV heads, so the attention kind stays. At most
    eight experts remain, of which a token visits at most two.
    """
    small = text_part(config)
    small.pop("quantization_config", None)
    width = _first(small, _HIDDEN)
    heads = _first(small, _HEADS)
    if width is None or heads is None:
        raise InputError("this configuration states no hidden size or heads; give a decoder of text")
    head_dim = small.get("head_dim") or small[width] // small[heads]
    kv = small.get("num_key_value_heads") or small[heads]
    factor = max(small[width] // hidden, 1)
    fewer = max(kv // factor, 1)
    small[heads] = max(small[heads] * fewer // kv, 1)
    if "num_key_value_heads" in small:
        small["num_key_value_heads"] = fewer
    if small[heads] * head_dim != small[width] // factor and not small.get("head_dim"):
        small[width] = small[heads] * head_dim
    else:
        small[width] = max(small[width] // factor // 32, 1) * 32
    for key in _WIDTHS:
        if isinstance(small.get(key), int):
            small[key] = max(small[key] // factor // 16, 1) * 16
    for keys, most in ((_LAYERS, layers), (_EXPERTS, 8), (_TOP_K, 2), (_VOCAB, vocab)):
        for key in keys:
            if isinstance(small.get(key), int):
                small[key] = min(small[key], most)
    _fit_lists(small, layers)
    small.update(dict.fromkeys(_TOKENS, 0))
    return small


def small_words(whole: Mapping[str, Any], small: Mapping[str, Any]) -> str:
    """What of ``whole`` is left in ``small``: 4 of 28 layers, 512 of 1,024 wide, 8,192 of 151,936 tokens."""
    said = []
    for keys, form in ((_LAYERS, "{} of {} layers"), (_HIDDEN, "{} of {} wide"), (_VOCAB, "{} of {} tokens")):
        key = _first(dict(small), keys)
        if key is not None and isinstance(whole.get(key), int) and small[key] != whole[key]:
            said.append(form.format(f"{small[key]:,}", f"{whole[key]:,}"))
    return ", ".join(said) or "nothing left out"


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's own part of a configuration."""
    part = config.get("text_config")
    found = part if isinstance(part, dict) and "model_type" in part else config
    return {key: value for key, value in found.items() if not key.startswith("_")}


def _fit_lists(small: dict[str, Any], layers: int) -> None:
    """Per-layer lists and settings that refer to layers beyond the last."""
    for key, value in list(small.items()):
        if isinstance(value, list) and key in ("layer_types", "mlp_layer_types", "no_rope_layers"):
            small[key] = value[:layers]
    if "n_routed_experts" in small:  # few experts make one group
        small.update(n_group=1, topk_group=1)
    if isinstance(small.get("first_k_dense_replace"), int):
        small["first_k_dense_replace"] = min(small["first_k_dense_replace"], max(layers - 1, 0))


def _first(config: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if isinstance(config.get(key), int)), None)
