"""NVIDIA ModelOpt: ``hf_quant_config.json`` and the same facts inside ``quantization_config``.

Algorithm names as in NVIDIA/Model-Optimizer ``modelopt/torch/export`` and vLLM ``quantization/modelopt.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.formats.formats import Format
from trilemma.models.architecture import Quantization
from trilemma.models.quantized import fields, storage
from trilemma.models.quantized.compressed_tensors import kv_format, read_compressed_tensors
from trilemma.models.quantized.patterns import read_patterns

_MAX_LAYERS = 200_000


def read_modelopt(config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None = None) -> Quantization:
    """ModelOpt's description; ``hf_quant_config`` (the file beside config.json) is the more complete where both exist."""
    inner = fields.mapping(hf_quant_config, "quantization") if hf_quant_config else {}
    inner = inner or (fields.mapping(config, "quantization") or config)
    algorithm = fields.text(inner, "quant_algo") or fields.text(config, "quant_algo")
    ignored = read_patterns(
        inner.get("exclude_modules") or inner.get("ignore") or config.get("ignore") or (), field="exclude_modules"
    )
    kv_name = fields.text(inner, "kv_cache_quant_algo")
    kv = (None if kv_name in ("", "none") else kv_name) or kv_format(config.get("kv_cache_scheme"))
    listed = _quantized_layers(fields.mapping(inner, "quantized_layers") or fields.mapping(config, "quantized_layers"))
    if listed:
        return Quantization(
            method="modelopt",
            weight_format=max(listed, key=lambda entry: len(entry[1]))[0],
            activation_bits=None,
            kv_format=kv,
            ignored=ignored,
            layer_formats=listed,
            listed_only=True,
        )
    if not algorithm and config.get("config_groups"):
        return read_compressed_tensors(config)
    stored = algorithm_format(algorithm, inner)
    note = f"ModelOpt algorithm {shorten(algorithm)!r} without its layers: the weight format is not stated"
    return Quantization(
        method="modelopt",
        weight_format=stored,
        activation_bits=_ACTIVATION_BITS.get(algorithm),
        kv_format=kv,
        ignored=ignored,
        notes=() if stored is not None else (note,),
    )


_ACTIVATION_BITS = {
    "fp8": 8,
    "fp8_per_channel_per_token": 8,
    "fp8_pb_real": 8,
    "nvfp4": 4,
    "nvfp4_awq": 4,
    "mxfp8": 8,
    "w4a8_awq": 8,
    "w4a8_nvfp4_fp8": 8,
    "w4a8_mxfp4_fp8": 8,
    "int8_sq": 8,
    "w8a8_sq_per_channel": 8,
    "w8a8_sq_per_channel_per_token_plugin": 8,
}


def algorithm_format(algorithm: str, config: Mapping[str, Any]) -> Format | None:
    """The stored form of weights under a ModelOpt algorithm name; None for one that is unknown or mixed."""
    match algorithm.lower():
        case "fp8":
            return storage.fp8("tensor")
        case "fp8_per_channel_per_token":
            return storage.fp8("channel")
        case "fp8_pb_wo" | "fp8_pb_real" | "fp8_block_scales":
            return storage.fp8("block")
        case "nvfp4" | "w4a16_nvfp4" | "nvfp4_awq" | "w4a8_nvfp4_fp8" | "nvfp4_svdquant":
            return storage.nvfp4(fields.group_size(config, "group_size", 16))
        case "mxfp4" | "w4a8_mxfp4_fp8":
            return storage.mxfp(4)
        case "mxfp8":
            return storage.mxfp(8)
        case "int4_awq" | "w4a16_awq" | "w4a8_awq":
            return storage.grouped_int(4, fields.group_size(config, "group_size", 128))
        case "int8_sq" | "w8a8_sq_per_channel" | "w8a8_sq_per_channel_per_token_plugin" | "w8a16":
            return storage.int8_channel()
    return None


def _quantized_layers(layers: Mapping[str, Any]) -> tuple[tuple[Format, tuple[str, ...]], ...]:
    if len(layers) > _MAX_LAYERS:
        raise InputError(f"quantized_layers has {len(layers):,} entries; at most {_MAX_LAYERS:,} are read")
    modules: dict[Format, list[str]] = {}
    for module, entry in layers.items():
        if not isinstance(entry, Mapping):
            raise InputError(f"quantized layer {shorten(module)!r} is {shorten(repr(entry))}; it must be an object")
        stored = algorithm_format(fields.text(entry, "quant_algo"), entry)
        if stored is None:
            raise InputError(
                f"quantized layer {shorten(module)!r} has the algorithm {shorten(repr(entry.get('quant_algo')))}, "
                "which is not known; give the weights' bytes or another checkpoint"
            )
        modules.setdefault(stored, []).append(module)
    return tuple((stored, read_patterns(names, field="quantized_layers")) for stored, names in modules.items())
