"""Configurations of AutoRound, ModelOpt, torchao, bitsandbytes and llama-quantize, and flags of engines."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from typing import Any

from trilemma.engines import traits_of
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.precision.export.plan_modules import PlanModules, patterns

_GGUF_NAMES = {
    "embed_tokens": "token_embd", "lm_head": "output", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
    "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def auto_round(plan: PlanModules) -> dict[str, Any]:
    """``layer_config`` of intel/auto-round by module, with the most frequent scheme as default arguments."""
    layers = {module.name: _auto_round(module.weights, module.activations, plan.dtype) for module in plan.quantised}
    kept = {module.name: {"bits": 16, "data_type": "float"} for module in plan.kept}
    if not layers:
        raise InputError("the plan quantises nothing; AutoRound has nothing to do")
    common = Counter(tuple(sorted(scheme.items())) for scheme in layers.values()).most_common(1)[0][0]
    return {"default": dict(common), "layer_config": {**layers, **kept}}


def _auto_round(fmt: Format, activations: Format, dtype: Format) -> dict[str, Any]:
    kinds = {"int": "int", "nvfp4": "nv_fp", "mxfp4": "mx_fp", "mxfp8": "mx_fp"}
    data_type = kinds.get(fmt.name) or ("fp" if fmt.kind == "float" and fmt.bits == 8 else kinds.get(fmt.kind))
    if data_type is None or fmt.kind in ("packed", "codebook"):
        raise InputError(f"AutoRound has no scheme for {fmt.name}; use integers, FP8, NVFP4, MXFP4 or MXFP8")
    group = fmt.group if fmt.granularity == "group" else {"channel": -1, "tensor": 0}.get(fmt.granularity, -1)
    quantised = activations != dtype
    return {
        "bits": int(fmt.bits),
        "group_size": group,
        "sym": fmt.signed,
        "data_type": data_type,
        "act_bits": int(activations.bits) if quantised else 16,
        **({"act_dynamic": True} if quantised else {}),
    }


def model_optimizer(plan: PlanModules) -> dict[str, Any]:
    """A PTQ recipe of NVIDIA Model Optimizer: everything off, then each kind of module on (modelopt_recipes/general/ptq)."""
    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for modules in plan.by_formats().values():
        weights, activations = modules[0].weights, modules[0].activations
        config = _model_optimizer(weights, dynamic=False)
        for module in modules:
            name = module.name.replace(".experts.0.", ".experts.*.")
            entries.append({"quantizer_name": f"*{name}.weight_quantizer", "cfg": config})
            if activations != plan.dtype:
                entries.append(
                    {"quantizer_name": f"*{name}.input_quantizer", "cfg": _model_optimizer(activations, dynamic=True)}
                )
    if plan.kv_cache != "auto" and catalogue.get(plan.kv_cache).bits < 16:
        cache = _model_optimizer(catalogue.get(plan.kv_cache), dynamic=False)
        entries += [{"quantizer_name": f"*{half}_bmm_quantizer", "cfg": cache} for half in ("k", "v")]
    return {
        "metadata": {"recipe_type": "ptq", "description": f"{plan.plan} for {plan.model}"},
        "quantize": {"algorithm": "max", "quant_cfg": entries},
    }


def _model_optimizer(fmt: Format, *, dynamic: bool) -> dict[str, Any]:
    if fmt.name == "nvfp4":
        return {
            "num_bits": "e2m1",
            "block_sizes": {-1: 16, "type": "dynamic" if dynamic else "static", "scale_bits": "e4m3"},
        }
    if fmt.scale_format == "e8m0" and fmt.name in ("mxfp4", "mxfp8"):
        bits = "e2m1" if fmt.bits == 4 else "e4m3"
        return {"num_bits": bits, "block_sizes": {-1: 32, "type": "dynamic", "scale_bits": "e8m0"}}
    if fmt.kind == "float" and fmt.bits == 8:
        config: dict[str, Any] = {"num_bits": "e4m3"}
        if fmt.granularity == "block":
            return config | {"block_sizes": {-1: fmt.block[1], -2: fmt.block[0]}}
        return config | {"axis": 0 if fmt.granularity == "channel" else None}
    if fmt.kind == "int" and fmt.bits in (4, 8):
        if fmt.granularity == "group":
            return {"num_bits": int(fmt.bits), "block_sizes": {-1: fmt.group, "type": "static"}}
        return {"num_bits": int(fmt.bits), "axis": 0 if fmt.granularity == "channel" else None}
    raise InputError(
        f"Model Optimizer has no quantizer for {fmt.name}; use FP8, NVFP4, MXFP4, MXFP8, INT8 or INT4 groups"
    )


def torchao(plan: PlanModules) -> dict[str, Any]:
    """``config_to_dict`` of a torchao FqnToConfig (torchao 0.18), as transformers' TorchAoConfig stores it."""
    entries: dict[str, Any] = {}
    for modules in plan.by_formats().values():
        chosen = {module.name for module in modules}
        others = [module for module in plan.modules if module.name not in chosen]
        config = _torchao(modules[0].weights, modules[0].activations, plan.dtype)
        for one in patterns(modules, others):
            entries[f"re:{one}"] = config
    return {"_type": "FqnToConfig", "_version": 1, "_data": {"fqn_to_config": entries, "module_fqn_to_config": entries}}


def _torchao(weights: Format, activations: Format, dtype: Format) -> dict[str, Any]:
    def config(kind: str, **data: Any) -> dict[str, Any]:
        version = {
            "Int8WeightOnlyConfig": 2,
            "Float8WeightOnlyConfig": 2,
            "IntxWeightOnlyConfig": 2,
            "Int8DynamicActivationInt8WeightConfig": 2,
            "Float8DynamicActivationFloat8WeightConfig": 2,
        }
        return {"_type": kind, "_version": version.get(kind, 1), "_data": data}  # fmt: skip

    quantised = activations != dtype
    if weights.name == "int8_channel":
        kind = "Int8DynamicActivationInt8WeightConfig" if quantised else "Int8WeightOnlyConfig"
        return config(kind)
    if weights.name == "fp8_channel":
        if not quantised:
            return config("Float8WeightOnlyConfig")
        row = {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}
        return config("Float8DynamicActivationFloat8WeightConfig", granularity=[row, row])
    if weights.name == "fp8_tensor" and quantised:
        return config("Float8DynamicActivationFloat8WeightConfig")
    if weights.name == "nvfp4" and not quantised:
        return config("NVFP4WeightOnlyConfig")
    if weights.kind == "int" and weights.granularity == "group" and weights.signed and not quantised:
        return config(
            "IntxWeightOnlyConfig",
            weight_dtype={"_type": "torch.dtype", "_data": f"int{int(weights.bits)}"},
            granularity={"_type": "PerGroup", "_version": 1, "_data": {"group_size": weights.group}},
        )
    raise InputError(
        f"torchao has no configuration here for {weights.name} weights with {activations.name} activations; use int8_channel,"
        " fp8_channel, nvfp4 or symmetric integer groups"
    )


def bits_and_bytes(plan: PlanModules) -> dict[str, Any]:
    """``quantization_config`` for bitsandbytes: one format for everything that is not skipped."""
    names = {module.weights.name for module in plan.quantised}
    if len(names) != 1:
        raise InputError(f"bitsandbytes holds one format, the plan has {', '.join(sorted(names)) or 'none'}")
    name = names.pop()
    skipped = [module.name.replace(".experts.0.", ".experts.") for module in plan.kept]
    if name in ("nf4", "nf4_double_quant"):
        return {
            "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": name == "nf4_double_quant", "bnb_4bit_compute_dtype": _torch_name(plan.dtype),
            "llm_int8_skip_modules": skipped,
        }  # fmt: skip
    if name == "int8_channel":
        return {
            "quant_method": "bitsandbytes",
            "load_in_8bit": True,
            "load_in_4bit": False,
            "llm_int8_skip_modules": skipped,
        }
    raise InputError(f"bitsandbytes has no {name}; use nf4, nf4_double_quant or int8_channel")


def llama_quantize(plan: PlanModules) -> str:
    """A call of ggml-org/llama.cpp's llama-quantize with one ``--tensor-type`` per kind of tensor and format."""
    types: dict[str, str] = {}
    for module in plan.modules:
        if module.role == "router":
            continue
        fmt = module.weights
        if fmt != plan.dtype and fmt.kind != "packed":
            raise InputError(f"GGUF has no {fmt.name} ({module.name}); use formats such as q4_k, q6_k, q8_0")
        types[_gguf_name(module.name)] = (
            fmt.name if fmt.kind == "packed" else {"fp16": "f16", "fp32": "f32"}.get(fmt.name, "bf16")
        )
    common = Counter(kind for kind in types.values() if kind not in ("bf16", "f16", "f32")).most_common(1)
    base = common[0][0].upper() if common else "BF16"
    special = {"output": "--output-tensor-type", "token_embd": "--token-embedding-type"}
    lines = [f"{flag} {types.pop(name)}" for name, flag in special.items() if name in types]
    by_kind: dict[tuple[str, str], list[int]] = {}
    for name, kind in types.items():
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if match is None:
            lines.append("--tensor-type " + shlex.quote(f"^{re.escape(name)}={kind}"))
        else:
            by_kind.setdefault((match[2], kind), []).append(int(match[1]))
    several = Counter(tensor for tensor, _ in by_kind)
    for (tensor, kind), numbers in by_kind.items():
        where = "[0-9]+" if several[tensor] == 1 else f"({'|'.join(map(str, numbers))})"
        lines.append("--tensor-type " + shlex.quote(rf"^blk\.{where}\.{tensor}={kind}"))
    # K-quant type names of llama-quantize are mixes; its plain names and the tensor types above settle every tensor.
    base = {"Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S", "Q3_K": "Q3_K_S"}.get(base, base)
    body = " \\\n  ".join(["llama-quantize", *lines, "model-f16.gguf", shlex.quote(f"model-{plan.plan}.gguf"), base])
    return f"#!/bin/sh\n# {plan.plan} for {plan.model}\n{body}\n"


def _gguf_name(module: str) -> str:
    parts = module.split(".")
    last = _GGUF_NAMES.get(parts[-1], parts[-1])
    if last in ("token_embd", "output"):
        return last
    number = next((part for part in parts if part.isdecimal()), None)
    if number is None or parts[-1] not in _GGUF_NAMES:
        raise InputError(f"{module} has no name known in GGUF here; write its --tensor-type by hand")
    if ".shared_expert" in module:
        last += "_shexp"
    elif ".experts." in module:
        last += "_exps"
    return f"blk.{number}.{last}"


def engine_flags(plan: PlanModules, *, engine: str) -> str:
    """The flags with which ``engine`` serves the checkpoint; engines read its quantization_config by themselves."""
    formats = {module.weights.name for module in plan.quantised}
    kinds = {module.weights.kind for module in plan.quantised}
    flags: list[str] = []
    if kinds == {"packed"}:
        flags.append("--quantization gguf")
    elif kinds == {"codebook"}:
        flags.append("--quantization bitsandbytes")
    elif formats:
        flags.append("--quantization compressed-tensors")
    if plan.kv_cache != "auto":
        fmt = catalogue.get(plan.kv_cache)
        flags.append(f"--kv-cache-dtype {_cache_word(fmt, engine)}")
    return " ".join(flags)


def _cache_word(fmt: Format, engine: str) -> str:
    words = traits_of(engine).cache_words
    if fmt.name not in words:
        raise InputError(f"{engine} has no cache of {fmt.name}; use fp8_e4m3, fp8_e5m2 or auto")
    return words[fmt.name]


def _torch_name(fmt: Format) -> str:
    return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[fmt.name]
