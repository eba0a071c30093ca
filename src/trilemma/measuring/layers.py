"""Layers of Transformers as they really run: what Python takes, how weights stream between other work, and elementwise kernels.

Two depths of the same model are timed; the layer is their difference, the rest what a step takes once. What the layer's products,
attention and update take at the rates measured for them is taken off; what is left is the host's, or elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trilemma.measuring.clock import Patience, Timing, summary, timed
from trilemma.measuring.device import FORMATS, Device
from trilemma.measuring.kernels import BenchFigure
from trilemma.measuring.steps import BACKWARD

#: Depths of the two models of which the layer is the difference.
_FEW, _MANY = 1, 3
#: What is left of a layer is taken for no less than this part of it: differences of noisy times may be none.
_LEAST = 0.05


def layer_figures(device: Device, fmt: str, patience: Patience, rates: Mapping[str, float]) -> list[BenchFigure]:
    """Figures of layers in ``fmt``, given the ``rates`` of kernels. Empty where Transformers is missing, or where a card computes
    beside its host, whose kernels hide what Python takes."""
    if device.on_card:
        return []
    try:
        from trilemma.measuring import small_llama as small
    except ImportError:
        return []
    tiny: dict[str, float] = {}
    found = []
    for name, make, calls in (("decode", small.generation, small.TOKENS), ("training", small.training_step, 1)):
        each, once, timing = _difference(device, fmt, make, small.TINY, patience)
        tiny[name] = each / calls
        for part, seconds in (("layer", each), ("step", once)):
            value = seconds / calls
            figure = f"host_{name}_{part}_{fmt}_s"
            found.append(_measured(figure, "layers that hardly compute", value, timing))
    plain = small.PLAIN
    shape = f"a layer {plain.hidden} wide, {plain.inner} inside"
    each, _, timing = _difference(device, fmt, small.generation, plain, patience)
    size = plain.weights * getattr(device.torch, FORMATS[fmt]).itemsize
    left = max(each / small.TOKENS - tiny["decode"], _LEAST * each / small.TOKENS)
    found.append(_measured(f"layer_stream_{fmt}_bytes_per_s", f"{shape}, one row", size / left, timing))
    each, _, timing = _difference(device, fmt, small.training_step, plain, patience)
    left = max(each - tiny["training"] - _known_s(plain, fmt, size, rates), _LEAST * each)
    rows = plain.seq * plain.batch
    # the widths that `trilemma.timing.training_operators` counts: two halves of five, the gate of three, queries and keys twice
    work = (
        (1 + BACKWARD)
        * 2.0
        * rows
        * (10.0 * plain.hidden + 3.0 * plain.inner + 2.0 * (plain.heads + plain.kv_heads) * plain.head_width)
    )
    found.append(
        _measured(
            f"layer_pointwise_{fmt}_bytes_per_s",
            f"{shape}, {rows} rows",
            work / left,
            timing,
        )
    )
    return found


def _known_s(layer: Any, fmt: str, n_bytes: float, rates: Mapping[str, float]) -> float:
    """Seconds of a training step's products, attention and update of one layer, at the rates measured for them."""
    rows = layer.seq * layer.batch
    attention = 3.5 * 2.0 * layer.batch * layer.hidden * float(layer.seq) ** 2
    works = {
        f"training_products_{fmt}_flops_per_s": 6.0 * rows * layer.weights,
        f"attention_{fmt}_flops_per_s": attention,
        f"update_{fmt}_bytes_per_s": 7.0 * n_bytes,
    }
    return float(sum(work / rates[name] for name, work in works.items() if name in rates))


def _difference(
    device: Device, fmt: str, make: Callable[..., Callable[[], object]], layer: Any, patience: Patience
) -> tuple[float, float, Timing]:
    """(seconds of one layer, seconds beside all layers, the deeper model's timing) of a call."""
    few, many = (timed(make(device, fmt, depth, layer), device.watch, patience) for depth in (_FEW, _MANY))
    each = max((many.median_s - few.median_s) / (_MANY - _FEW), _LEAST * many.median_s / _MANY)
    return each, max(few.median_s - _FEW * each, 1e-6), many


def _measured(figure: str, shape: str, value: float, timing: Timing) -> BenchFigure:
    low, high = (value * seconds / timing.median_s for seconds in (timing.low_s, timing.high_s))
    spread = summary([low, value, high])
    return BenchFigure(figure=figure, shape=shape, value=value, timing=spread)
