"""The sizes of a Llama-like decoder, from a config.json, a GGUF header or a llama2.c header, checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError, shorten

#: Architectures that are one decoder: RMSNorm, rotary positions, grouped-query attention, gated SiLU feed-forward.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_MOST = {
    "layers": 512, "hidden": 2**16, "heads": 2**10, "kv_heads": 2**10, "head_dim": 2**10, "intermediate": 2**18,
    "vocab": 2**21, "max_positions": 2**24,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderShape:
    """Sizes and constants of a Llama-like decoder.

    ``rope_factors`` are those of Llama 3.1's stretched rotary positions (factor, low and high frequency factor, original
    positions), None for plain ones. Raises `InputError` for sizes that cannot be.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    rope_theta: float = 10_000.0
    rope_factors: tuple[float, float, float, int] | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
                raise InputError(f"{name} is {shorten(repr(value))}; a decoder has 1 to {most:,}")
        if self.heads % self.kv_heads:
            raise InputError(f"{self.kv_heads} KV heads do not divide the {self.heads} attention heads")
        if self.head_dim % 2:
            raise InputError(f"heads of {self.head_dim} columns cannot be rotated; they need an even number")
        if not 1.0 <= self.rope_theta <= 1e12 or not 0.0 < self.norm_eps < 1.0:
            raise InputError(f"rope_theta {self.rope_theta:g} or norm_eps {self.norm_eps:g} is out of range")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor by its name in a Transformers checkpoint → its shape (out, in)."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for index in range(self.layers):
            found |= {f"model.layers.{index}.{name}": shape for name, shape in self._layer(q, kv).items()}
        found["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            found["lm_head.weight"] = (self.vocab, self.hidden)
        return found

    def _layer(self, q: int, kv: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (self.hidden,)}
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            found[f"self_attn.{name}.weight"] = (rows, self.hidden)
            if self.qkv_bias:
                found[f"self_attn.{name}.bias"] = (rows,)
        if self.qk_norm:
            found |= {"self_attn.q_norm.weight": (self.head_dim,), "self_attn.k_norm.weight": (self.head_dim,)}
        found["self_attn.o_proj.weight"] = (self.hidden, q)
        found["post_attention_layernorm.weight"] = (self.hidden,)
        found["mlp.gate_proj.weight"] = found["mlp.up_proj.weight"] = (self.intermediate, self.hidden)
        found["mlp.down_proj.weight"] = (self.hidden, self.intermediate)
        return found


def shape_from_config(config: Mapping[str, Any], *, what: str) -> DecoderShape:
    """The sizes that a Transformers config.json states.

    Raises `InputError` for other architectures, quantised checkpoints, and variants whose arithmetic differs.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"{what}: model_type {shorten(repr(family))} is not measured here; {', '.join(FAMILIES)} are")
    if config.get("quantization_config"):
        raise InputError(f"{what} is quantised already; measure the unquantised checkpoint")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise InputError(f"{what}: hidden_act {shorten(repr(config['hidden_act']))} is not measured here; silu is")
    if config.get("mlp_bias") or (config.get("attention_bias") and family != "qwen2"):
        raise InputError(f"{what}: attention_bias and mlp_bias are not measured here; use a model without them")
    hidden, heads = _whole(config, "hidden_size", what), _whole(config, "num_attention_heads", what)
    kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    theta, factors = _rotary(config, what)
    return DecoderShape(
        family=family,
        hidden=hidden,
        layers=_whole(config, "num_hidden_layers", what),
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=hidden // max(heads, 1) if head_dim is None else head_dim,
        intermediate=_whole(config, "intermediate_size", what),
        vocab=_whole(config, "vocab_size", what),
        max_positions=_whole(config, "max_position_embeddings", what),
        rope_theta=theta,
        rope_factors=factors,
        norm_eps=_number(config.get("rms_norm_eps", 1e-6), "rms_norm_eps", what),
        tied=config.get("tie_word_embeddings", False) is True,
        qk_norm=family == "qwen3",
        qkv_bias=family == "qwen2",
    )


def shape_from_gguf(metadata: Mapping[str, Any], *, vocab: int, tied: bool, what: str) -> DecoderShape:
    """The sizes that GGUF metadata state; ``vocab`` rows of the embedding, ``tied`` where no output matrix is stored."""
    family = metadata.get("general.architecture")
    if family not in FAMILIES:
        raise InputError(
            f"{what}: architecture {shorten(repr(family))} is not measured here; {', '.join(FAMILIES)} are"
        )

    def field(name: str) -> Any:
        return metadata.get(f"{family}.{name}")

    named = {name: field(name) for name in ("embedding_length", "attention.head_count", "block_count")}
    hidden, heads, layers = (_whole(named, name, what) for name in named)
    if field("rope.scaling.type") not in (None, "none"):
        raise InputError(f"{what}: stretched rotary positions of GGUF are not measured here; use the safetensors")
    return DecoderShape(
        family=family,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=field("attention.head_count_kv") or heads,
        head_dim=field("attention.key_length") or hidden // max(heads, 1),
        intermediate=_whole({"feed_forward_length": field("feed_forward_length")}, "feed_forward_length", what),
        vocab=vocab,
        max_positions=field("context_length") or 4096,
        rope_theta=_number(field("rope.freq_base") or 10_000.0, "rope.freq_base", what),
        norm_eps=_number(field("attention.layer_norm_rms_epsilon") or 1e-5, "layer_norm_rms_epsilon", what),
        tied=tied,
        qk_norm=family == "qwen3",
        qkv_bias=family == "qwen2",
    )


def _rotary(config: Mapping[str, Any], what: str) -> tuple[float, tuple[float, float, float, int] | None]:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise InputError(f"{what}: rope_scaling {shorten(repr(scaling))} is no object; correct it")
    stated = config.get("rope_theta", scaling.get("rope_theta", 10_000.0))
    theta = _number(stated, "rope_theta", what)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise InputError(
            f"{what}: rotary positions of type {shorten(repr(kind))} are not measured here; plain and llama3 are"
        )
    factor, low, high = (
        _number(scaling.get(name), name, what) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    if not factor > 0 or not high > low:
        raise InputError(f"{what}: the factors of rope_scaling cannot be; correct them")
    return theta, (factor, low, high, _whole(scaling, "original_max_position_embeddings", what))


def _whole(fields: Mapping[str, Any], name: str, what: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{what}: {name} is {shorten(repr(value))}; it must be a whole number of at least 1")
    return value


def _number(value: Any, name: str, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what}: {name} is {shorten(repr(value))}; it must be a number")
    return float(value)
