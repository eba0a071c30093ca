"""compressed-tensors: the quantization_config of a checkpoint, and the llm-compressor recipe that makes it.

Fields as in vllm-project/compressed-tensors quantization/quant_args.py, quant_scheme.py and the presets there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.precision.export.plan_modules import PlanModules, patterns


def quantization_config(plan: PlanModules) -> dict[str, Any]:
    """The ``quantization_config`` of config.json. Raises `InputError` for formats that compressed-tensors has no scheme for."""
    groups = config_groups(plan)
    layouts = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "mixed-precision" if len(layouts) > 1 else next(iter(layouts), "dense"),
        "config_groups": groups,
        "ignore": [f"re:^{one}$" for one in patterns(plan.kept, plan.quantised)],
        "kv_cache_scheme": cache_scheme(plan.kv_cache),
        "global_compression_ratio": None,
    }


def config_groups(plan: PlanModules) -> dict[str, dict[str, Any]]:
    """One group per pair of formats, its targets as regular expressions."""
    found: dict[str, dict[str, Any]] = {}
    for number, modules in enumerate(plan.by_formats().values()):
        weights, activations = modules[0].weights, modules[0].activations
        if any(module.role == "embedding" for module in modules):
            raise InputError(
                f'compressed-tensors checkpoints keep embeddings as they are; give {modules[0].name} weights = "own"'
            )
        chosen = {module.name for module in modules}
        others = [module for module in plan.modules if module.name not in chosen]
        found[f"group_{number}"] = {
            "targets": [f"re:^{one}$" for one in patterns(modules, others)],
            "weights": weight_scheme(weights),
            "input_activations": None if activations == plan.dtype else activation_scheme(weights, activations),
            "output_activations": None,
            "format": layout(weights, quantised_inputs=activations != plan.dtype),
        }
    return found


def weight_scheme(fmt: Format) -> dict[str, Any]:
    """QuantizationArgs of weights."""
    kind = "int" if fmt.kind == "int" else "float"
    if fmt.kind not in ("int", "float") or fmt.granularity in ("none", "flat"):
        raise _unknown(fmt)
    scheme: dict[str, Any] = {"num_bits": int(fmt.bits), "type": kind, "symmetric": fmt.signed, "dynamic": False}
    match fmt.granularity:
        case "tensor" | "channel":
            scheme["strategy"] = fmt.granularity
        case "block":
            scheme |= {"strategy": "block", "block_structure": list(fmt.block)}
        case "group":
            strategy = "tensor_group" if fmt.tensor_bits else "group"
            scheme |= {"strategy": strategy, "group_size": fmt.group, **_scale_dtype(fmt)}
    if fmt.kind == "float" and fmt.granularity == "group" and fmt.name not in ("nvfp4", "mxfp4", "mxfp8"):
        raise _unknown(fmt)
    if fmt.kind == "int" and fmt.bits not in (2, 3, 4, 5, 6, 7, 8):
        raise _unknown(fmt)
    return scheme


def activation_scheme(weights: Format, activations: Format) -> dict[str, Any]:
    """QuantizationArgs of dynamic input activations that go with such weights."""
    kind = "int" if activations.kind == "int" else "float"
    scheme: dict[str, Any] = {"num_bits": int(activations.bits), "type": kind, "symmetric": True, "dynamic": True}
    if activations.name == "nvfp4":
        return scheme | {"strategy": "tensor_group", "group_size": 16, "dynamic": "local", **_scale_dtype(activations)}
    if activations.granularity == "group":
        return scheme | {"strategy": "group", "group_size": activations.group, **_scale_dtype(activations)}
    if weights.granularity == "block":
        return scheme | {"strategy": "group", "group_size": weights.block[1]}
    return scheme | {"strategy": "token"}


def layout(fmt: Format, *, quantised_inputs: bool) -> str:
    """How the values of one group lie in the file."""
    if fmt.name in ("nvfp4", "mxfp4"):
        return f"{fmt.name}-pack-quantized"
    if fmt.name == "mxfp8":
        return "mxfp8-quantized"
    if fmt.kind == "float":
        return "float-quantized"
    return "int-quantized" if quantised_inputs and fmt.bits == 8 else "pack-quantized"


def cache_scheme(kv_cache: str) -> dict[str, Any] | None:
    """``kv_cache_scheme``: one scale per tensor, FP8 or INT8; None where the cache keeps the model's format."""
    if kv_cache == "auto":
        return None
    fmt = catalogue.get(kv_cache)
    if fmt.bits >= 16:
        return None
    if fmt.bits != 8:
        raise InputError(
            f'compressed-tensors describes 8-bit caches, not {fmt.name}; use fp8 or leave kv_cache = "auto"'
        )
    kind = "int" if fmt.kind == "int" else "float"
    return {"num_bits": 8, "type": kind, "strategy": "tensor", "symmetric": True, "dynamic": False}


def recipe(plan: PlanModules) -> dict[str, Any]:
    """A recipe of llm-compressor that rounds to nearest (add GPTQ or AWQ modifiers in its place for better weights)."""
    modifier: dict[str, Any] = {
        "config_groups": {name: _without_format(group) for name, group in config_groups(plan).items()},
        "ignore": [f"re:^{one}$" for one in patterns(plan.kept, plan.quantised)],
    }
    scheme = cache_scheme(plan.kv_cache)
    if scheme is not None:
        modifier["kv_cache_scheme"] = scheme
    return {"default_stage": {"default_modifiers": {"QuantizationModifier": modifier}}}


def _without_format(group: Mapping[str, Any]) -> dict[str, Any]:
    """llm-compressor chooses layouts itself."""
    return {key: value for key, value in group.items() if key != "format" and value is not None}


def _scale_dtype(fmt: Format) -> dict[str, str]:
    if fmt.scale_format == "e8m0":
        return {"scale_dtype": "torch.uint8"}
    return {"scale_dtype": "torch.float8_e4m3fn"} if fmt.scale_format == "fp8_e4m3" else {}


def _unknown(fmt: Format) -> InputError:
    return InputError(
        f"compressed-tensors has no scheme for {fmt.name}; export to "
        + ("llama-quantize" if fmt.kind == "packed" else "bitsandbytes" if fmt.kind == "codebook" else "another target")
    )
