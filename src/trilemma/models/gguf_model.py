"""From a GGUF header to a `Model`: its metadata as a hub configuration, its tensors with their exact types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.models.architecture import Model, Quantization
from trilemma.models.gguf_file import GgufHeader, files_of, hub_name, read_header
from trilemma.models.read import model_from_config
from trilemma.models.stored import StoredTensor, lay_over, model_of_tensors


def model_from_gguf(path: Path, *, name: str) -> Model:
    """The model in ``path`` (and the other files of its split).

    An architecture that no reader knows gives exact sizes with the cache named as unknown. Raises `InputError` for files
    that contradict themselves.
    """
    headers = [read_header(part) for part in files_of(path)]
    metadata = headers[0].metadata
    stored = [_named(tensor) for header in headers for tensor in header.tensors]
    if len({tensor.name for tensor in stored}) != len(stored):
        raise InputError(f"{shorten(str(path))}: two files of the split hold the same tensor; fetch them again")
    if not stored:
        raise InputError(f"{shorten(str(path))} lists no tensors; give the file that holds the weights")
    quantization = _quantization(stored)
    config = config_of(metadata, headers)
    if config is None:
        model = model_of_tensors(stored, name=name, source=str(path))
        return replace(model, quantization=quantization)
    model = lay_over(model_from_config(config, name=name, source=str(path)), stored, source=str(path))
    return replace(model, quantization=quantization)


def config_of(metadata: Mapping[str, Any], headers: list[GgufHeader]) -> dict[str, Any] | None:
    """GGUF metadata under the names of a hub configuration; None for an architecture that has no reader here."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise InputError("the GGUF metadata has no general.architecture; fetch the file again")
    family = _facts()["architectures"].get(architecture)
    if family is None:
        return None
    config: dict[str, Any] = {"model_type": family, "dtype": "bfloat16"}
    for key, field in _facts()["keys"].items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None:
            config[field] = value
    names = {tensor.name: tensor for header in headers for tensor in header.tensors}
    embedding = names.get("token_embd.weight")
    if embedding is not None:
        config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in names
    _adapt(config, metadata, architecture, names)
    return config


def _adapt(
    config: dict[str, Any], metadata: Mapping[str, Any], architecture: str, names: Mapping[str, StoredTensor]
) -> None:
    """What one architecture says in words of its own."""
    for field in ("num_key_value_heads", "num_attention_heads", "intermediate_size"):
        values = config.get(field)
        if isinstance(values, list):
            if len(set(values)) != 1:
                raise InputError(
                    f"the GGUF metadata gives {field} by layer, which is not read; give the model's config.json"
                )
            config[field] = values[0]
    experts = config.get("num_experts")
    if architecture == "llama" and experts:
        config |= {"model_type": "mixtral", "num_local_experts": config.pop("num_experts")}
    elif architecture == "gpt-oss":
        config["num_local_experts"] = config.pop("num_experts", None)
        config["intermediate_size"] = config.pop("moe_intermediate_size", config.get("intermediate_size"))
        layers = config.get("num_hidden_layers")
        if isinstance(layers, int) and 0 < layers <= 1024:
            config["layer_types"] = [
                "sliding_attention" if not index % 2 else "full_attention" for index in range(layers)
            ]
    elif architecture == "deepseek2":
        config |= _latent(config, metadata)
        if not any("exp_probs_b" in name for name in names):
            config["model_type"] = "deepseek_v2"
    elif architecture == "glm4moe":
        config["n_routed_experts"] = config.pop("num_experts", None)
        _without_mtp(config)
        config["attention_bias"] = "blk.0.attn_q.bias" in names
        config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in names
    elif architecture == "minimax-m2":
        config["num_local_experts"] = config.pop("num_experts", None)
        config["intermediate_size"] = config.pop("moe_intermediate_size", config.get("intermediate_size"))
    elif architecture in ("qwen2moe", "qwen3moe", "qwen3next"):
        config.setdefault("decoder_sparse_step", 1)
    if architecture == "gemma3":
        config.setdefault("sliding_window_pattern", 6)
    if architecture == "phi3" and not config.get("sliding_window"):
        config.pop("sliding_window", None)


def _without_mtp(config: dict[str, Any]) -> None:
    """``block_count`` of llama.cpp includes the multi-token-prediction layers, ``num_hidden_layers`` does not."""
    blocks, extra = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers", 0)
    if isinstance(blocks, int) and isinstance(extra, int) and 0 < extra < blocks:
        config["num_hidden_layers"] = blocks - extra


def _latent(config: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """MLA: newer files state key lengths of the heads before compression as ``*_mla``, older ones as key_length."""
    rope = metadata.get("deepseek2.rope.dimension_count")
    key = metadata.get("deepseek2.attention.key_length_mla", metadata.get("deepseek2.attention.key_length"))
    value = metadata.get("deepseek2.attention.value_length_mla", metadata.get("deepseek2.attention.value_length"))
    config.pop("head_dim", None)
    if not all(isinstance(number, int) for number in (rope, key, value)) or key <= rope:
        raise InputError(
            "the GGUF metadata does not give the key, value and rope lengths of MLA; give the model's config.json"
        )
    return {
        "n_routed_experts": config.pop("num_experts", None),
        "num_key_value_heads": config.get("num_attention_heads"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": value,
        "q_lora_rank": config.get("q_lora_rank"),
        "moe_layer_freq": 1,
    }


def _named(tensor: StoredTensor) -> StoredTensor:
    return replace(tensor, name=hub_name(tensor.name))


def _quantization(stored: list[StoredTensor]) -> Quantization | None:
    """The type that holds most bytes of matrices; None for a file of plain floats."""
    sizes: dict[str, int] = {}
    by_name = {tensor.format.name: tensor.format for tensor in stored}
    for tensor in stored:
        if len(tensor.shape) > 1:
            sizes[tensor.format.name] = sizes.get(tensor.format.name, 0) + tensor.n_bytes
    if not sizes:
        return None
    main = by_name[max(sizes, key=lambda name: sizes[name])]
    if main.granularity == "none":
        return None
    return Quantization(method="gguf", weight_format=main)


@cache
def _facts() -> dict[str, Any]:
    return read_data("models/gguf.toml")
