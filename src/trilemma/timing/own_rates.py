"""Coefficients of a machine that was measured and that no table tells of: its own rates in place of judged shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trilemma.hardware.accelerator import Accelerator
from trilemma.timing.coefficients import Coefficients
from trilemma.timing.roofline import peak_flops

#: Small kernels of a dense decoder layer of the models whose host time is measured, attention among them: those that
#: `trilemma.timing.launches` and `trilemma.timing.training_operators` count of a Llama layer.
_DECODE_KERNELS, _TRAINING_KERNELS = 9, 14


def as_measured(coefficients: Coefficients, accelerator: Accelerator) -> Coefficients:
    """``coefficients`` with what ``accelerator``'s own file says was measured on it; unchanged where it says nothing.

    Shares of its stated peak and bandwidth, and seconds, numbers. Source: the file's table ``[measured]``
    (`trilemma.measuring`).
    """
    own = accelerator.own_rates
    if not own:
        return coefficients
    bandwidth = accelerator.bandwidth_bytes_per_s.value
    products = {
        name: own[key] / accelerator.peak_flops[name].value
        for name in accelerator.peak_flops
        if (key := f"products_{name}_flops_per_s") in own
    }
    streams = {bits: own.get(f"layer_{key}", own[key]) / bandwidth for bits, key in _STREAMS.items() if key in own}
    numbers: dict[str, float] = {}
    if "gather_bytes_per_s" in own:
        numbers["cache_stream"] = min(own["gather_bytes_per_s"] / bandwidth, 1.0)
    for fmt in ("bf16", "fp32"):
        if (key := f"attention_{fmt}_flops_per_s") in own:
            numbers["prefill_attention"] = own[key] / peak_flops(accelerator, fmt)
            break
    layer_s, step_s = (own.get(f"host_decode_{part}_bf16_s") for part in ("layer", "step"))
    each = layer_s / _DECODE_KERNELS if layer_s is not None else own.get("launch_s")
    if each is not None:
        numbers |= {"kernel_s": each, "attention_kernel_s": each}
    if step_s is not None:
        numbers |= {"step_s": step_s, "request_s": step_s, "sequence_s": 0.0}
    shares = replace(
        coefficients, source="measured on this machine", card=accelerator.name, matmul={**coefficients.matmul, **products},
        stream={**coefficients.stream, **streams},
    )  # fmt: skip
    return shares.with_numbers(**numbers)


_STREAMS = {32: "stream_fp32_bytes_per_s", 16: "stream_bf16_bytes_per_s"}


def training_rates(accelerator: Accelerator, fmt: str) -> Mapping[str, float]:
    """Rates of a training step in ``fmt`` as `trilemma.timing.training_coefficients.rates` names them; those that were measured.

    FLOPs or bytes a second, or seconds. Source: the file's table ``[measured]`` (`trilemma.measuring`).
    """
    own = accelerator.own_rates
    products = own.get(f"training_products_{fmt}_flops_per_s")
    if products is None:
        return {}
    half, layer_s = 0.5 if fmt == "fp32" else 1.0, own.get(f"host_training_layer_{fmt}_s")
    told = {
        "linear": products,
        "plain": products,
        "expert": products,
        "attention": own.get(f"attention_{fmt}_flops_per_s"),
        "stream": own.get("copy_bytes_per_s", 0.0) * half or None,
        "pointwise": own.get(f"layer_pointwise_{fmt}_bytes_per_s", own.get(f"pointwise_{fmt}_bytes_per_s")),
        "logits": own.get(f"logits_{fmt}_bytes_per_s"),
        "optimizer": own.get(f"update_{fmt}_bytes_per_s"),
        "launch": None if layer_s is None else layer_s / _TRAINING_KERNELS / _PASSES,
        "step": own.get(f"host_training_step_{fmt}_s"),
        "software": 1.0,
        "narrow": 0.0,
    }
    return {name: value for name, value in told.items() if value is not None}


#: Launches of a step over those of its forward pass (`trilemma.timing.training_stage`): 1 + 0.75 · 2.
_PASSES = 2.5
