"""Kernels of a device, each timed: products by format and shape, attention, weights and cache as they stream, copies.

Every bench says what it moved or multiplied, so that its rate can stand beside a datasheet's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trilemma.measuring.clock import Patience, Timing, timed
from trilemma.measuring.device import FORMATS, Device

#: (rows, outputs, depth) of products, the widest last; the quick pass takes those marked.
_PRODUCTS = ((256, 1024, 1024, True), (1024, 1024, 1024, True), (512, 4096, 1024, False), (2048, 2048, 2048, False))
_CARD_PRODUCTS = (
    (4096, 4096, 4096, True),
    (8192, 8192, 8192, True),
    (4096, 14336, 4096, False),
    (16384, 8192, 8192, False),
)
#: Weights that stream are larger than any cache; a processor's quick pass takes fewer.
_STREAM_BYTES, _CARD_STREAM_BYTES = 192 * 2**20, 4 * 2**30
#: A block of a paged cache: 16 tokens of 8 heads of 128 in 16 bits.
_BLOCK_ELEMENTS = 16 * 8 * 128


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchFigure:
    """One figure: ``figure`` names it with its unit, ``shape`` says of what, ``value`` is work over the median's seconds (or the
    seconds themselves)."""

    figure: str
    shape: str
    value: float
    timing: Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """One measurement to come: ``make`` builds its tensors and gives the call, ``work`` is what a call does in the figure's unit
    (0: the seconds themselves are the figure)."""

    figure: str
    shape: str
    work: float
    make: Callable[[], Callable[[], object]]
    needs_bytes: float = 0.0

    def run(self, device: Device, patience: Patience) -> BenchFigure:
        timing = timed(self.make(), device.watch, patience)
        value = self.work / timing.median_s if self.work else timing.median_s
        return BenchFigure(figure=self.figure, shape=self.shape, value=value, timing=timing)


def benches(device: Device, *, full: bool) -> Iterator[Bench]:
    """Every bench of ``device`` that it can run, in the order in which they are shown."""
    yield from _copies(device)
    for fmt in FORMATS:
        if fmt == "fp16" and not device.on_card:  # no processor multiplies it
            continue
        yield from _products(device, fmt, full)
        yield _stream(device, fmt)
        yield _attention(device, fmt, full)
    if device.kind == "cuda" and (device.compute_capability or 0.0) >= 8.9:
        yield from _fp8_products(device, full)
    yield _gather(device)
    yield _launch(device)


def _copies(device: Device) -> Iterator[Bench]:
    size = _CARD_STREAM_BYTES // 4 if device.on_card else _STREAM_BYTES
    elements = size // 4
    torch = device.torch

    def inside() -> Callable[[], object]:
        source = device.random(elements)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    yield Bench(figure="copy_bytes_per_s", shape=f"{size >> 20} MiB, read and written", work=2.0 * size, make=inside)
    if not device.on_card:
        return
    host_elements = (256 << 20) // 4

    def over(to_card: bool) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            near = torch.empty(host_elements, device=device.place)
            far = torch.empty(host_elements, pin_memory=True)
            target, source = (near, far) if to_card else (far, near)
            return lambda: target.copy_(source, non_blocking=True)

        return make

    for name, to_card in (("host_to_device_bytes_per_s", True), ("device_to_host_bytes_per_s", False)):
        yield Bench(figure=name, shape="256 MiB, pinned", work=4.0 * host_elements, make=over(to_card))


def _products(device: Device, fmt: str, full: bool) -> Iterator[Bench]:
    shapes = _CARD_PRODUCTS if device.on_card else _PRODUCTS
    for rows, outputs, depth, quick in shapes:
        if quick or full:
            yield Bench(
                figure=f"products_{fmt}_flops_per_s", shape=f"{rows} x {outputs} x {depth}", work=2.0 * rows * outputs * depth,
                make=_linear(device, fmt, rows, outputs, depth),
            )  # fmt: skip
    rows, outputs, depth, _ = shapes[1]
    yield Bench(
        figure=f"training_products_{fmt}_flops_per_s", shape=f"{rows} x {outputs} x {depth}, with both gradients",
        work=6.0 * rows * outputs * depth, make=_trained(device, fmt, rows, outputs, depth),
    )  # fmt: skip


def _linear(device: Device, fmt: str, rows: int, outputs: int, depth: int) -> Callable[[], Callable[[], object]]:
    def make() -> Callable[[], object]:
        inputs, weights = device.random(rows, depth, fmt=fmt), device.random(outputs, depth, fmt=fmt)
        linear = device.torch.nn.functional.linear
        return lambda: linear(inputs, weights)

    return make


def _trained(device: Device, fmt: str, rows: int, outputs: int, depth: int) -> Callable[[], Callable[[], object]]:
    def make() -> Callable[[], object]:
        inputs = device.random(rows, depth, fmt=fmt).requires_grad_()
        weights = device.random(outputs, depth, fmt=fmt).requires_grad_()
        gradient = device.random(rows, outputs, fmt=fmt)
        linear, grad = device.torch.nn.functional.linear, device.torch.autograd.grad
        return lambda: grad(linear(inputs, weights), (inputs, weights), gradient)

    return make


def _fp8_products(device: Device, full: bool) -> Iterator[Bench]:
    """One scale a tensor, as engines multiply by default."""
    torch = device.torch
    for rows, outputs, depth, quick in _CARD_PRODUCTS:
        if not (quick or full):
            continue

        def make(rows: int = rows, outputs: int = outputs, depth: int = depth) -> Callable[[], object]:
            inputs = device.random(rows, depth).to(torch.float8_e4m3fn)
            weights = device.random(outputs, depth).to(torch.float8_e4m3fn).t()
            one = torch.ones((), device=device.place)
            return lambda: torch._scaled_mm(inputs, weights, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        yield Bench(
            figure="products_fp8_flops_per_s",
            shape=f"{rows} x {outputs} x {depth}",
            work=2.0 * rows * outputs * depth,
            make=make,
        )


def _stream(device: Device, fmt: str) -> Bench:
    """One row times many matrices, one after the other, none of them still in a cache: a token's decode step."""
    size = _CARD_STREAM_BYTES if device.on_card else _STREAM_BYTES
    width = 8192 if device.on_card else 2048
    each = getattr(device.torch, FORMATS[fmt]).itemsize * width * width
    count = max(2, size // each)

    def make() -> Callable[[], object]:
        weights = [device.random(width, width, fmt=fmt) for _ in range(count)]
        row = device.random(1, width, fmt=fmt)
        linear = device.torch.nn.functional.linear

        def step() -> None:
            for one in weights:
                linear(row, one)

        return step

    return Bench(
        figure=f"stream_{fmt}_bytes_per_s", shape=f"{count} matrices of {width} x {width}, one row", work=float(count * each),
        make=make, needs_bytes=float(count * each),
    )  # fmt: skip


def _attention(device: Device, fmt: str, full: bool) -> Bench:
    """Causal attention forward and backward over one sequence; FLOPs of the triangle, 3.5 times those of the forward pass
    (Dao 2023, section 4.1)."""
    tokens = (8192 if full else 4096) if device.on_card else 512
    heads, width = (32, 128) if device.on_card else (8, 64)

    def make() -> Callable[[], object]:
        three = [device.random(1, heads, tokens, width, fmt=fmt).requires_grad_() for _ in range(3)]
        gradient = device.random(1, heads, tokens, width, fmt=fmt)
        attend, grad = device.torch.nn.functional.scaled_dot_product_attention, device.torch.autograd.grad
        return lambda: grad(attend(*three, is_causal=True), three, gradient)

    work = 3.5 * 2.0 * heads * width * float(tokens) ** 2
    shape = f"{tokens} tokens, {heads} heads of {width}, causal, forward and backward"
    return Bench(figure=f"attention_{fmt}_flops_per_s", shape=shape, work=work, make=make)


def _gather(device: Device) -> Bench:
    """Blocks of a paged cache read in random order: what attention over a shared pool asks of the memory."""
    size = (_CARD_STREAM_BYTES if device.on_card else _STREAM_BYTES) // 2
    blocks = size // (2 * _BLOCK_ELEMENTS)

    def make() -> Callable[[], object]:
        torch = device.torch
        pool = torch.zeros(blocks, _BLOCK_ELEMENTS, device=device.place, dtype=torch.bfloat16)
        order = torch.randperm(blocks, device=device.place)
        target = torch.empty_like(pool)
        return lambda: torch.index_select(pool, 0, order, out=target)

    return Bench(
        figure="gather_bytes_per_s", shape=f"{blocks:,} blocks of {2 * _BLOCK_ELEMENTS >> 10} KiB, read and written",
        work=4.0 * blocks * _BLOCK_ELEMENTS, make=make,
    )  # fmt: skip


def _launch(device: Device) -> Bench:
    def make() -> Callable[[], object]:
        small: Any = device.random(16)
        return lambda: small.add(1.0)

    return Bench(figure="launch_s", shape="one small kernel", work=0.0, make=make)
