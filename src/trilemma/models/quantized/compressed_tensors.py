"""compressed-tensors (llm-compressor): groups of targets, each with a scheme for weights and activations.

Fields as in vllm-project/compressed-tensors ``quantization/quant_args.py`` and ``quant_scheme.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Quantization
from trilemma.models.quantized import fields, storage
from trilemma.models.quantized.patterns import read_patterns

_MAX_GROUPS = 1024
#: Targets that name a class of module, so that the group holds for every linear layer not named elsewhere.
_CLASS_TARGETS = {"Linear", "LinearBase", "ParallelLMHead", "FusedMoE", "MoE"}


def read_compressed_tensors(config: Mapping[str, Any]) -> Quantization:
    """A ``quantization_config`` or ``compression_config`` of compressed-tensors, or ModelOpt's copy of its layout."""
    groups = fields.mapping(config, "config_groups")
    if len(groups) > _MAX_GROUPS:
        raise InputError(f"config_groups has {len(groups):,} groups; at most {_MAX_GROUPS:,} are read")
    general: Format | None = None
    activation_bits: int | None = None
    listed: list[tuple[Format, tuple[str, ...]]] = []
    notes: list[str] = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise InputError(f"config group {shorten(str(name))!r} is {shorten(repr(group))}; it must be an object")
        weights = fields.mapping(group, "weights")
        if not weights:
            continue
        stated = fields.text(group, "format") or fields.text(config, "format")
        format_ = weight_format(weights, layout=stated)
        activation_bits = activation_bits or _activation_bits(group)
        targets = read_patterns(group.get("targets", ["Linear"]), field="targets")
        classes = [target for target in targets if target in _CLASS_TARGETS]
        modules = tuple(target for target in targets if target not in _CLASS_TARGETS)
        if classes:
            general = general or format_
        if modules:
            listed.append((format_, modules))
    if not groups:
        notes.append("compressed-tensors without config_groups: the weight format is not stated")
    return Quantization(
        method="compressed-tensors",
        weight_format=general or (listed[0][0] if listed else None),
        activation_bits=activation_bits,
        kv_format=kv_format(config.get("kv_cache_scheme")),
        ignored=read_patterns(config.get("ignore"), field="ignore"),
        layer_formats=tuple(listed),
        listed_only=general is None and bool(listed),
        notes=tuple(notes),
    )


def weight_format(weights: Mapping[str, Any], *, layout: str = "") -> Format:
    """The stored form of weights from their ``num_bits``, ``type``, ``strategy``, ``group_size`` and ``symmetric``."""
    n_bits = fields.bits(weights, "num_bits", 8)
    kind = fields.text(weights, "type") or "int"
    strategy = fields.text(weights, "strategy")
    group = fields.group_size(weights, "group_size", 0) if weights.get("group_size") else 0
    if not strategy:
        strategy = "group" if group > 0 else "channel" if group == -1 else "tensor"
    symmetric = weights.get("symmetric", True) is not False
    if kind == "float" and n_bits in (4, 8, 16):
        return _float_format(weights, int(n_bits), strategy=strategy, group=group, layout=layout)
    if kind != "int" or n_bits is None or n_bits != int(n_bits):
        raise InputError(
            f"weights of type {shorten(kind)!r} with {n_bits} bits are not known; use int or float weights"
        )
    if n_bits == 8 and strategy in ("channel", "tensor"):
        return storage.grouped_int(8, -1) if strategy == "channel" else storage.int8_tensor()
    return storage.grouped_int(
        n_bits, group if strategy in ("group", "tensor_group") else -1, zero_point_bits=0 if symmetric else n_bits
    )


def _float_format(weights: Mapping[str, Any], n_bits: int, *, strategy: str, group: int, layout: str) -> Format:
    """Floats of 4, 8 or 16 bits."""
    if n_bits == 16:
        return catalogue.get("bf16")
    if n_bits == 4:
        return storage.mxfp(4) if "mxfp4" in layout or group == 32 else storage.nvfp4(group or 16)
    if "mxfp8" in layout or (strategy == "group" and group == 32):
        return storage.mxfp(8)
    if strategy == "block":
        return storage.fp8("block", block=fields.block_shape(weights, "block_structure") or (128, 128))
    if strategy == "group":
        return storage.fp8("block", block=(1, group))
    return storage.fp8("tensor" if strategy == "tensor" else "channel")


def kv_format(scheme: object) -> str | None:
    """``kv_cache_scheme``: an object of bits and type, or the bare name of a format."""
    if isinstance(scheme, str):
        return scheme.lower()[:16] or None
    if not isinstance(scheme, Mapping) or not scheme:
        return None
    n_bits = fields.bits(scheme, "num_bits", 8)
    kind = fields.text(scheme, "type") or "float"
    return f"{'fp' if kind == 'float' else 'int'}{n_bits:g}"


def _activation_bits(group: Mapping[str, Any]) -> int | None:
    activations = fields.mapping(group, "input_activations")
    n_bits = fields.bits(activations, "num_bits")
    return None if n_bits is None else int(n_bits)
