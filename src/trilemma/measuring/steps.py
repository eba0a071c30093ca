"""Parts of a training step that are no products: each in the bytes that the estimate counts for it.

The work of a bench is counted as `trilemma.timing.training_loads` counts it (bytes of 16-bit elements, whatever the format), so
that its rate stands in an estimate as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trilemma.measuring.device import FORMATS, Device
from trilemma.measuring.kernels import Bench

_HALF_BYTES = 2
#: Rows, width and inner width of the piece of a layer that is timed; vocabulary of the loss.
_ROWS, _HIDDEN, _INNER, _VOCAB = 512, 1024, 3072, 16384
#: Passes over elements in the backward pass of one in the forward pass.
BACKWARD = 1.5


def step_benches(device: Device, fmt: str) -> Iterator[Bench]:
    """Elementwise kernels, the loss and the update of AdamW in ``fmt``."""
    rows = _ROWS * (16 if device.on_card else 1)
    moved = _HALF_BYTES * rows * (5.0 * _HIDDEN + 3.0 * _INNER)
    yield Bench(
        figure=f"pointwise_{fmt}_bytes_per_s", shape=f"norm, gate and sum of {rows} rows, forward and backward",
        work=(1 + BACKWARD) * moved, make=lambda: _pointwise(device, fmt, rows),
    )  # fmt: skip
    yield Bench(
        figure=f"logits_{fmt}_bytes_per_s", shape=f"loss of {rows} rows over {_VOCAB:,} words, forward and backward",
        work=float(_HALF_BYTES * rows * _VOCAB), make=lambda: _loss(device, fmt, rows),
    )  # fmt: skip
    matrices, elements = (32, 2**23) if device.on_card else (16, 2**20)
    each = getattr(device.torch, FORMATS[fmt]).itemsize
    yield Bench(
        figure=f"update_{fmt}_bytes_per_s", shape=f"AdamW over {matrices} matrices of {elements:,} weights",
        work=7.0 * each * elements * matrices, make=lambda: _update(device, fmt, matrices, elements),
    )  # fmt: skip


def _pointwise(device: Device, fmt: str, rows: int) -> Callable[[], object]:
    """As eager Transformers code runs them: the norm in FP32, the gate and the residual in the format."""
    torch = device.torch
    stream = device.random(rows, _HIDDEN, fmt=fmt).requires_grad_()
    scale = device.random(_HIDDEN, fmt=fmt).requires_grad_()
    gate, up = (device.random(rows, _INNER, fmt=fmt).requires_grad_() for _ in range(2))
    narrow, wide = device.random(rows, _HIDDEN, fmt=fmt), device.random(rows, _INNER, fmt=fmt)
    silu, grad = torch.nn.functional.silu, torch.autograd.grad

    def call() -> None:
        plain = stream.to(torch.float32)
        normed = plain * torch.rsqrt(plain.pow(2).mean(-1, keepdim=True) + 1e-6)
        grad(stream + scale * normed.to(stream.dtype), (stream, scale), narrow)
        grad(silu(gate) * up, (gate, up), wide)

    return call


def _loss(device: Device, fmt: str, rows: int) -> Callable[[], object]:
    torch = device.torch
    logits = device.random(rows, _VOCAB, fmt=fmt).requires_grad_()
    labels = torch.randint(0, _VOCAB, (rows,), device=device.place)
    entropy, grad = torch.nn.functional.cross_entropy, torch.autograd.grad
    return lambda: grad(entropy(logits.float(), labels), logits)


def _update(device: Device, fmt: str, matrices: int, elements: int) -> Callable[[], object]:
    torch = device.torch
    weights = [torch.nn.Parameter(device.random(elements, fmt=fmt)) for _ in range(matrices)]
    for one in weights:
        one.grad = device.random(elements, fmt=fmt)
    optimizer: Any = torch.optim.AdamW(weights)
    return lambda: optimizer.step()
