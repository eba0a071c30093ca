"""Seconds that the tower of a model takes for images, before their tokens are part of a prompt."""

from __future__ import annotations

import numpy as np

from trilemma.models.architecture import Model, Tensor
from trilemma.quantities import Numbers
from trilemma.timing.attention import OperatorWork
from trilemma.timing.machine import Machine
from trilemma.timing.operators import Products
from trilemma.timing.pass_time import OperatorTally, PassTime

#: Kernels of a block: norms, projections, attention, two or three matrices, additions.
_KERNELS = 10
_COMPUTED_IN, _BITS = "bf16", 16.0


def tower_pass(
    model: Model, machine: Machine, *, patches: Numbers, span: Numbers, tokens: Numbers, tp: Numbers
) -> PassTime:
    """One pass of the tower over ``patches`` of which ``span`` attend to one another, and of its projector over ``tokens``.

    ``2 · weights · patches`` FLOPs of products and ``4 · layers · patches · span · hidden`` of attention (full in both
    directions; windows where the tower has them), at what products and attention of prompts reach on these cards; cut over
    ``tp`` ranks. Numbers or arrays (plans,); shapes of weights (out, in).

    Source: the towers' classes in transformers (models/qwen2_5_vl, siglip, pixtral, …); shares: ``spec_sheet.toml`` and terms.
    """
    tower, tally = model.vision, OperatorTally(machine)
    shares = machine.coefficients.prefill_matmul
    for tensor in model.of_part("vision"):
        if tensor.role == "vision.linear" and len(tensor.shape) == 2:
            product = _product(tensor)
            rows = patches if _in_blocks(tensor) else tokens
            tally.product("dense", product, product.work(rows, tp), share=shares)
    full = tower.get("full_layers", tower["layers"])
    windowed = np.minimum(span, tower.get("window", 0) or span)
    reach = full * np.asarray(span, dtype=float) + (tower["layers"] - full) * windowed
    attention = OperatorWork(
        flops=4.0 * np.asarray(patches) * reach * tower["hidden"] / tp,
        bytes=8.0 * np.asarray(patches) * tower["hidden"] * tower["layers"] / tp,
    )
    tally.operator(
        "attention", attention, computed_in=_COMPUTED_IN, share=machine.coefficients.prefill_attention,
        bytes_per_s=machine.bandwidth * machine.coefficients.cache_stream,
    )  # fmt: skip
    tally.add("kernels", "host", tower["layers"] * _KERNELS * machine.coefficients.kernel_s)
    return tally.done()


def _product(tensor: Tensor) -> Products:
    out, width = tensor.shape
    return Products(
        computed_in=_COMPUTED_IN, bits=_BITS, shard=tensor.shard, units=tensor.shard_units, elements=tensor.elements,
        bytes=tensor.bytes, inputs=width, outputs=out,
    )  # fmt: skip


def _in_blocks(tensor: Tensor) -> bool:
    """Whether a matrix is one of a block, which works on patches; mergers and projectors work on what they make of them."""
    return any(f".{word}." in tensor.name for word in ("blocks", "layers"))
