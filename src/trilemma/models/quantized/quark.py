"""AMD Quark: one scheme for all layers, others by layer pattern, and excluded modules.

Fields as in vLLM ``quantization/quark`` and AMD's exported checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.formats.formats import Format
from trilemma.models.architecture import Quantization
from trilemma.models.quantized import fields, storage
from trilemma.models.quantized.patterns import read_patterns


def read_quark(config: Mapping[str, Any]) -> Quantization:
    """``global_quant_config``, ``layer_quant_config`` and ``exclude`` of a Quark checkpoint."""
    overall = fields.mapping(config, "global_quant_config")
    stored = _weight_format(fields.mapping(overall, "weight"))
    listed: list[tuple[Format, tuple[str, ...]]] = []
    for pattern, entry in fields.mapping(config, "layer_quant_config").items():
        own = _weight_format(fields.mapping(entry, "weight")) if isinstance(entry, Mapping) else None
        if own is not None:
            listed.append((own, read_patterns([pattern], field="layer_quant_config")))
    activations = fields.text(fields.mapping(overall, "input_tensors"), "dtype")
    kv = next(
        (
            fields.text(fields.mapping(entry, "output_tensors"), "dtype")
            for entry in fields.mapping(config, "kv_cache_quant_config").values()
            if isinstance(entry, Mapping)
        ),
        "",
    )
    note = f"quark weights {fields.text(fields.mapping(overall, 'weight'), 'dtype')[:40]!r} are not known"
    return Quantization(
        method="quark",
        weight_format=stored,
        activation_bits=4 if "4" in activations[:4] else 8 if "8" in activations else None,
        kv_format="fp8" if kv.startswith("fp8") else None,
        ignored=read_patterns(config.get("exclude"), field="exclude"),
        layer_formats=tuple(listed),
        notes=() if stored else (note,),
    )


def _weight_format(weight: Mapping[str, Any]) -> Format | None:
    dtype = fields.text(weight, "dtype")
    scheme = fields.text(weight, "qscheme")
    group = fields.group_size(weight, "group_size", -1)
    if dtype.startswith("fp8"):
        if scheme == "per_group" and fields.text(weight, "scale_format") == "e8m0":
            return storage.mxfp(8)
        return storage.fp8("channel" if scheme == "per_channel" else "tensor")
    if dtype == "fp4" or dtype.startswith("mxfp4"):
        return storage.mxfp(4)
    if dtype.startswith(("fp6", "mxfp6")):
        return storage.mxfp(6)
    if dtype == "int8":
        return storage.int8_channel() if scheme != "per_tensor" else storage.int8_tensor()
    if dtype in ("int4", "uint4"):
        symmetric = weight.get("symmetric", True) is not False
        return storage.grouped_int(4, group, zero_point_bits=0 if symmetric else 4)
    return None
