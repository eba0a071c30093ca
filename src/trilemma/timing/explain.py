"""Where a spec-sheet speed comes from, in words: the figures put in and the sources of the shares."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.roofline import peak_flops


def speed_explanation(work: ModelWork, machine: Machine) -> tuple[str, ...]:
    """One sentence a fact: which units multiply which weights, at which share of which peak, bandwidth and wires."""
    return tuple(_sentences(work, machine))


def _sentences(work: ModelWork, machine: Machine) -> Iterator[str]:
    card, shares, wires = machine.accelerator, machine.coefficients, machine.wires
    yield from work.computed_in
    computed = sorted({p.computed_in for p in (*work.dense, *work.head)} | {e.computed_in for e in work.experts})
    for name in computed:
        yield (
            f"{name} products reach {shares.matmul_share(name):.0%} of {peak_flops(card, name) / 1e12:,.0f} TFLOP/s dense"
            f" ({shares.card})"
        )
    bandwidth = card.bandwidth_bytes_per_s
    streams = ", ".join(f"{share:.0%} at {bits} bits" for bits, share in shares.stream.items())
    yield (
        f"weights stream at a share of {bandwidth.value / 1e12:,.2f} TB/s ({streams}), caches at {shares.cache_stream:.0%};"
        f" bandwidth from {bandwidth.source}"
    )
    yield (
        f"an operator takes the {shares.overlap_power:g}-norm of its compute and memory time (roofline with a rounded ridge)"
        f" plus {shares.kernel_s * 1e6:.3g} µs a kernel, {shares.attention_kernel_s * 1e6:.3g} µs an attention kernel"
    )
    yield (
        f"ranks up to {wires.local_ranks} talk at {wires.local_bytes_per_s / 1e9:,.0f} GB/s one way, beyond them at"
        f" {wires.network_bytes_per_s / 1e9:,.0f} GB/s; latencies {wires.local_latency_s * 1e6:.3g} and"
        f" {wires.network_latency_s * 1e6:.3g} µs"
    )
    yield (
        f"the host costs {shares.step_s * 1e3:.3g} ms a step, {shares.sequence_s * 1e6:.3g} µs a sequence and"
        f" {shares.request_s * 1e3:.3g} ms a request"
    )
    yield f"shares from {shares.source}"
    if machine.terms is not None:
        known = "this deployment" if machine.measured else "deployments like it"
        yield (
            f"each of these numbers is multiplied by terms fitted to runs of {known} ({machine.engine}, {machine.precision});"
            f" runs from {machine.terms.source}"
        )
