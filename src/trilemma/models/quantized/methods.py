"""Readers of ``quantization_config``, one function per method; a new method is one function and one row of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trilemma.formats.formats import Format
from trilemma.models.architecture import Quantization
from trilemma.models.quantized import fields, storage
from trilemma.models.quantized.patterns import read_patterns

QuantizationFields = Mapping[str, Any]


def read_gptq(config: QuantizationFields) -> Quantization:
    """GPTQ (AutoGPTQ, GPTQModel): packed weights, FP16 scales and packed zero points, kept even when ``sym``.

    ``dynamic`` maps regular expressions to overrides: ``-:pattern`` leaves modules alone, ``+:pattern`` changes bits.
    """
    n_bits = fields.bits(config, "bits", 4)
    group = fields.group_size(config, "group_size", 128)
    ignored = list(read_patterns(config.get("modules_to_not_convert"), field="modules_to_not_convert"))
    listed: list[tuple[Format, tuple[str, ...]]] = []
    for pattern, change in fields.mapping(config, "dynamic").items():
        if pattern.startswith("-:"):
            ignored.append("re:" + pattern[2:].lstrip())
        elif isinstance(change, Mapping):
            own_bits = fields.bits(change, "bits", n_bits)
            own_group = fields.group_size(change, "group_size", group)
            listed.append((_gptq_format(own_bits, own_group), ("re:" + pattern.removeprefix("+:").lstrip(),)))
    if config.get("lm_head") is True:
        listed.append((_gptq_format(n_bits, group), ("lm_head",)))
    return Quantization(
        method="gptq",
        weight_format=_gptq_format(n_bits, group),
        ignored=read_patterns(ignored, field="dynamic"),
        layer_formats=tuple(listed),
    )


def _gptq_format(n_bits: float | None, group: int) -> Format:
    n_bits = n_bits or 4
    return storage.grouped_int(n_bits, group, zero_point_bits=n_bits)


def read_awq(config: QuantizationFields) -> Quantization:
    """AutoAWQ (gemm, gemv): packed weights and zero points, FP16 scales; ``zero_point`` false has none."""
    n_bits = fields.bits(config, "bits") or fields.bits(config, "w_bit", 4) or 4
    group = fields.group_size(config, "group_size" if config.get("group_size") is not None else "q_group_size", 128)
    zero_point_bits = 0 if config.get("zero_point") is False else n_bits
    return Quantization(
        method="awq",
        weight_format=storage.grouped_int(n_bits, group, zero_point_bits=zero_point_bits),
        ignored=read_patterns(config.get("modules_to_not_convert"), field="modules_to_not_convert"),
    )


def read_fp8(config: QuantizationFields) -> Quantization:
    """FP8 of Transformers and DeepSeek: per tensor, or ``weight_block_size`` with FP32 ``weight_scale_inv``.

    ``scale_fmt: ue8m0`` alone only rounds the scales: DeepSeek-V3.1 and V3.2 still store them in FP32.
    """
    block = fields.block_shape(config, "weight_block_size")
    ignored = config.get("modules_to_not_convert") or config.get("ignored_layers") or config.get("ignore")
    dynamic = fields.text(config, "activation_scheme") in ("dynamic", "static", "")
    return Quantization(
        method="fp8",
        weight_format=storage.fp8("block", block=block) if block else storage.fp8("tensor"),
        activation_bits=8 if dynamic else None,
        kv_format=_plain_kv(config),
        ignored=read_patterns(ignored, field="modules_to_not_convert"),
    )


def read_fbgemm_fp8(config: QuantizationFields) -> Quantization:
    """FBGEMM FP8 (Llama-3.1-405B-FP8): one FP32 scale per output channel, FP8 activations per token."""
    return Quantization(
        method="fbgemm_fp8",
        weight_format=storage.fp8("channel"),
        activation_bits=8,
        ignored=read_patterns(config.get("modules_to_not_convert"), field="modules_to_not_convert"),
    )


def read_bitsandbytes(config: QuantizationFields) -> Quantization:
    """bitsandbytes: LLM.int8() with an FP32 scale per row, or 4-bit NF4/FP4 blocks of 64, perhaps doubly quantised."""
    if config.get("load_in_8bit") is True or config.get("_load_in_8bit") is True:
        stored = storage.int8_channel()
    else:
        stored = storage.four_bit_codebook(double_quant=config.get("bnb_4bit_use_double_quant") is True)
    return Quantization(
        method="bitsandbytes",
        weight_format=stored,
        activation_bits=8 if stored.bits == 8 else None,
        ignored=read_patterns(config.get("llm_int8_skip_modules"), field="llm_int8_skip_modules"),
    )


def read_mxfp4(config: QuantizationFields) -> Quantization:
    """MXFP4 of gpt-oss: the experts' matrices alone; biases, attention, router, embedding and head stay as they are."""
    return Quantization(
        method="mxfp4",
        weight_format=storage.mxfp(4),
        ignored=read_patterns(config.get("modules_to_not_convert"), field="modules_to_not_convert"),
        layer_formats=((storage.mxfp(4), ("experts",)),),
        listed_only=True,
    )


def read_auto_round(config: QuantizationFields) -> Quantization:
    """Intel AutoRound: GPTQ or AWQ packing of ``bits`` per ``group_size``; ``extra_config`` overrides single layers."""
    n_bits = fields.bits(config, "bits", 4) or 4
    group = fields.group_size(config, "group_size", 128)
    kind = fields.text(config, "data_type") or "int"
    ignored = list(read_patterns(config.get("modules_to_not_convert"), field="modules_to_not_convert"))
    listed: dict[Format, list[str]] = {}
    for module, change in fields.mapping(config, "extra_config").items():
        own_bits = fields.bits(change, "bits", n_bits) if isinstance(change, Mapping) else None
        if own_bits is None or own_bits >= 16:
            ignored.append(_auto_round_pattern(module))
        elif own_bits != n_bits:
            listed.setdefault(_auto_round_format(own_bits, group, kind), []).append(_auto_round_pattern(module))
    stored = _auto_round_format(n_bits, group, kind)
    return Quantization(
        method="auto-round",
        weight_format=stored,
        activation_bits=int(fields.bits(config, "act_bits", 16) or 16) if config.get("act_bits") else None,
        ignored=read_patterns(ignored, field="extra_config"),
        layer_formats=tuple((own, read_patterns(names, field="extra_config")) for own, names in listed.items()),
    )


def _auto_round_format(n_bits: float, group: int, kind: str) -> Format:
    if kind.startswith("mx"):
        return storage.mxfp(int(n_bits))
    if kind.startswith("nv"):
        return storage.nvfp4()
    if kind.startswith("fp") and n_bits == 8:
        return storage.fp8("channel" if group <= 0 else "block", block=(1, max(group, 1)))
    return storage.grouped_int(n_bits, group, zero_point_bits=n_bits)


def _auto_round_pattern(module: str) -> str:
    return f"re:{module}" if any(sign in module for sign in ("*", "\\", "(", "[")) else module


def read_hqq(config: QuantizationFields) -> Quantization:
    """HQQ: integers per group with a 16-bit scale and a 16-bit zero point."""
    parameters = fields.mapping(fields.mapping(config, "quant_config"), "weight_quant_params")
    n_bits = fields.bits(parameters, "nbits") or fields.bits(config, "nbits", 4) or 4
    holder = parameters if parameters.get("group_size") is not None else config
    return Quantization(
        method="hqq",
        weight_format=storage.grouped_int(n_bits, fields.group_size(holder, "group_size", 64), zero_point_bits=16),
        ignored=read_patterns(config.get("skip_modules"), field="skip_modules"),
    )


def read_torchao(config: QuantizationFields) -> Quantization:
    """torchao: the scheme's class or short name in ``quant_type``, with its arguments."""
    stated = config.get("quant_type")
    arguments: Mapping[str, Any] = fields.mapping(config, "quant_type_kwargs")
    if isinstance(stated, Mapping):
        chosen = stated.get("default", stated)
        stated = chosen.get("_type", "") if isinstance(chosen, Mapping) else ""
        inner = chosen.get("_data") if isinstance(chosen, Mapping) else None
        arguments = inner if isinstance(inner, Mapping) else {}
    name = str(stated)[:100].lower().replace("_", "")
    stored: Format | None = None
    if "float8" in name or "fp8" in name:
        stored = storage.fp8("channel" if "row" in str(arguments)[:2000].lower() else "tensor")
    elif "int4" in name or "uint4" in name:
        # Tinygemm packs a 16-bit scale and a 16-bit zero per group.
        stored = storage.grouped_int(4, fields.group_size(arguments, "group_size", 128), zero_point_bits=16)
    elif "int8" in name:
        stored = storage.int8_channel()
    notes = () if stored else (f"torchao quant_type {name[:60]!r} is not known: the weight format is not stated",)
    return Quantization(
        method="torchao",
        weight_format=stored,
        activation_bits=8 if "dynamicactivation" in name else None,
        ignored=read_patterns(config.get("modules_to_not_convert"), field="modules_to_not_convert"),
        notes=notes,
    )


def read_exl(config: QuantizationFields) -> Quantization:
    """ExLlama 2 and 3: average bits per weight where the file states them; the layer mix is not in the configuration."""
    method = fields.text(config, "quant_method") or "exl3"
    n_bits = fields.bits(config, "bits")
    head_bits = fields.bits(config, "head_bits")
    stored = storage.packed_bits(method, n_bits) if n_bits else None
    notes = () if stored else (f"{method} without bits per weight: the weight format is not stated",)
    listed = ((storage.packed_bits(method, head_bits), ("lm_head",)),) if stored and head_bits else ()
    return Quantization(method=method, weight_format=stored, layer_formats=listed, notes=notes)


def read_mlx(config: QuantizationFields) -> Quantization:
    """MLX (mlx_lm.convert): groups of ``group_size`` with a 16-bit scale and bias, or a microscaling ``mode``; every linear layer
    and the embedding, but those set to false; modules listed by name have bits of their own."""
    stored = _mlx_format(config)
    general = {name: config[name] for name in ("mode", "bits", "group_size") if name in config}
    ignored: list[str] = []
    listed: dict[Format, list[str]] = {}
    for module, change in config.items():
        if change is False:
            ignored.append(module)
        elif isinstance(change, Mapping):
            listed.setdefault(_mlx_format({**general, **change}), []).append(module)
    ends = (stored, ("lm_head", "embed_tokens"))
    return Quantization(
        method="mlx",
        weight_format=stored,
        ignored=read_patterns(ignored, field="quantization"),
        layer_formats=(*((own, read_patterns(names, field="quantization")) for own, names in listed.items()), ends),
    )


def _mlx_format(config: QuantizationFields) -> Format:
    mode = fields.text(config, "mode") or "affine"
    if mode.startswith("mxfp"):
        return storage.mxfp(8 if mode == "mxfp8" else 4)
    if mode == "nvfp4":
        return storage.nvfp4()
    return storage.grouped_int(
        fields.bits(config, "bits", 4) or 4, fields.group_size(config, "group_size", 64), zero_point_bits=16
    )


def read_int8_weights(config: QuantizationFields) -> Quantization:
    """Plain INT8 weights per output channel (EETQ, experts_int8, quanto int8)."""
    return Quantization(
        method=fields.text(config, "quant_method") or "int8",
        weight_format=storage.grouped_int(8, -1),
        ignored=read_patterns(config.get("modules_to_not_convert"), field="modules_to_not_convert"),
    )


def _plain_kv(config: QuantizationFields) -> str | None:
    return fields.text(config, "kv_cache_quant_algo") or None


#: Method name (lower case) to reader. compressed-tensors, modelopt and quark have modules of their own.
READERS: Mapping[str, Callable[[QuantizationFields], Quantization]] = {
    "gptq": read_gptq,
    "gptq_marlin": read_gptq,
    "gptqmodel": read_gptq,
    "marlin": read_gptq,
    "awq": read_awq,
    "awq_marlin": read_awq,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm_fp8,
    "bitsandbytes": read_bitsandbytes,
    "mxfp4": read_mxfp4,
    "auto-round": read_auto_round,
    "auto_round": read_auto_round,
    "autoround": read_auto_round,
    "intel/auto-round": read_auto_round,
    "hqq": read_hqq,
    "torchao": read_torchao,
    "exl2": read_exl,
    "exl3": read_exl,
    "eetq": read_int8_weights,
    "mlx": read_mlx,
}
