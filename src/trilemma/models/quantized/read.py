"""From the configuration files of a checkpoint to what they say of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.formats.formats import Format
from trilemma.models.architecture import Quantization
from trilemma.models.quantized import fields, storage
from trilemma.models.quantized.compressed_tensors import read_compressed_tensors
from trilemma.models.quantized.methods import READERS
from trilemma.models.quantized.modelopt import read_modelopt
from trilemma.models.quantized.quark import read_quark

_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "nvfp4")


def read_quantization(
    config: Mapping[str, Any], *, dtype: Format, quant_config: Mapping[str, Any] | None = None
) -> Quantization | None:
    """What the checkpoint says of its weights, or None for one that stores them all as ``dtype``.

    ``config`` is the contents of config.json, ``quant_config`` those of ``hf_quant_config.json`` where one lies beside it.
    A method that is named but not known gives ``weight_format=None`` with a note, never a guess. Raises `InputError` for
    values that cannot be: negative bits, lists that are no lists, unbounded patterns.
    """
    stated = _stated(config)
    if stated is None and not quant_config:
        return _expert_dtype(config, None)
    if quant_config is not None and not isinstance(quant_config, Mapping):
        raise InputError(f"hf_quant_config.json holds {shorten(repr(quant_config))}; it must be an object")
    method = _method(stated)
    mixed = bool(stated and stated.get("quantized_layers"))
    if quant_config or method in _MODELOPT or mixed or (not method and stated and "quant_algo" in stated):
        found = read_modelopt(stated or {}, quant_config)
        if method == "fp8":
            found = _over_fp8(found, READERS["fp8"](stated or {}))
        return _expert_dtype(config, found) if mixed else found
    assert stated is not None
    if stated.get("config_groups") or method in ("compressed-tensors", "compressed_tensors", "sparseml"):
        return read_compressed_tensors(stated)
    if method == "quark":
        return read_quark(stated)
    reader = READERS.get(method)
    if reader is None:
        return Quantization(
            method=shorten(method, most=40) or "not stated",
            weight_format=None,
            notes=(f"quantization method {shorten(method)!r} is not known: the weight format is not stated",),
        )
    found = reader(stated)
    plain = found.weight_format == dtype and not found.layer_formats
    return _expert_dtype(config, None if plain else found)


def _method(stated: Mapping[str, Any] | None) -> str:
    if not stated:
        return ""
    return "mlx" if _is_mlx(stated) else fields.text(stated, "quant_method")


def _stated(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``quantization_config`` or ``compression_config`` of the whole or of the text part of a configuration."""
    parts = [config, *(config.get(name) for name in ("text_config", "language_config", "llm_config"))]
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        for field in ("quantization_config", "compression_config"):
            value = part.get(field)
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise InputError(f"{field} is {shorten(repr(value))}; it must be an object")
            if value:
                return value
        own = part.get("quantization")  # older configurations of MLX
        if isinstance(own, Mapping) and _is_mlx(own):
            return own
    return None


def _is_mlx(stated: Mapping[str, Any]) -> bool:
    """MLX names no method: its configurations state a group and bits alone (mlx_lm/utils.py, save_config)."""
    return "quant_method" not in stated and {"group_size", "bits"} <= stated.keys()


def _over_fp8(listed: Quantization, base: Quantization) -> Quantization:
    """ModelOpt layers laid over an FP8 checkpoint: what they do not name keeps the FP8 of the base."""
    if listed.weight_format is None or not listed.layer_formats:
        return listed
    return replace(listed, weight_format=base.weight_format, listed_only=False, ignored=())


def _expert_dtype(config: Mapping[str, Any], found: Quantization | None) -> Quantization | None:
    """DeepSeek-V4 states the experts' format apart: ``expert_dtype: fp4`` is FP4 E2M1 with a power-of-two scale per 32.

    Its block-scaled FP8 tensors then store their scales as one power-of-two byte as well.
    """
    stated = config.get("expert_dtype")
    if stated is None or stated in ("bf16", "bfloat16", "fp8"):
        return found
    if stated != "fp4":
        raise InputError(f"expert_dtype {shorten(repr(stated))} is not known; fp4, fp8 and bf16 are")
    experts = ((storage.mxfp(4), ("experts",)),)
    if found is None:
        return Quantization(method="fp4", weight_format=storage.mxfp(4), layer_formats=experts, listed_only=True)
    base = found.weight_format
    if base is not None and base.granularity == "block":
        base = replace(base, scale_bits=8)
    return replace(found, weight_format=base, layer_formats=found.layer_formats + experts)
