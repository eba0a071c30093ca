"""Dense matrix products: tiles in waves over the multiprocessors, weights streamed from memory, the two overlapped."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.kernels.fitted import KernelCoefficients, Parameter
from trilemma.timing.kernels.gemm_tiles import tile_rules
from trilemma.timing.kernels.shapes import MEGA, MICRO, NANO, rounded_max, waves

PARAMETERS = (
    Parameter(name="compute_share", start=0.85, low=0.05, high=1.0, meaning="share of the dense peak inside a large tile"),
    Parameter(name="tile_loss", start=0.3, low=0.0, high=8.0, meaning="operand traffic of small tiles: 64/rows + 64/columns"),
    Parameter(name="startup_k", start=128.0, low=0.0, high=4096.0, meaning="pipeline fill and drain, in steps of k"),
    Parameter(name="wave_tail", start=0.7, low=0.0, high=1.0, meaning="share of an unfilled last wave that is paid"),
    Parameter(name="stream_share", start=0.85, low=0.1, high=1.1, meaning="share of bandwidth at which weights stream"),
    Parameter(name="ramp_mb", start=0.5, low=0.0, high=60.0, meaning="megabytes that the start of a stream costs"),
    Parameter(name="cached_gain", start=1.5, low=1.0, high=12.0, meaning="bandwidth of weights that stay in L2, over memory's"),
    Parameter(name="l2_fraction", start=0.7, low=0.05, high=2.0, meaning="part of L2 in which operands stay warm"),
    Parameter(name="fixed_us", start=3.0, low=0.2, high=60.0, meaning="microseconds of any launch, quantisation included"),
    Parameter(name="overlap_power", start=3.0, low=1.0, high=20.0, meaning="norm that joins arithmetic and streaming"),
    Parameter(name="split_us", start=2.0, low=0.0, high=30.0, meaning="microseconds to add up a product split along k"),
    Parameter(name="chain_us", start=0.1, low=0.0, high=30.0, meaning="microseconds of 1024 steps of k, one after another"),
    Parameter(name="row_ns", start=10.0, low=0.0, high=2000.0, meaning="nanoseconds to quantise one row, per multiprocessor"),
    Parameter(name="single_row_us", start=0.2, low=0.0, high=60.0, meaning="microseconds more where there is one row"),
    Parameter(name="quantise_passes", start=1.4, low=0.0, high=20.0, meaning="passes that quantising activations costs"),
    Parameter(name="power_sag", start=0.1, low=0.0, high=1.0, meaning="time lost where tensor cores never wait: lower clocks"),
    Parameter(
        name="tile_rule", start=0.0, low=0.0, high=7.0, choices=tuple(float(number) for number in range(8)),
        meaning="how tiles are chosen, by number in gemm_tiles.toml: 0 searched, else looked up by rows and columns",
    ),
    Parameter(name="splits_k", start=1.0, low=0.0, high=1.0, choices=(0.0, 1.0), meaning="1 where k may be split"),
    Parameter(
        name="fused_fixed_us", start=3.0, low=0.2, high=60.0, required=False,
        meaning="fixed_us of the 16-bit product of the same engine: no kernel for quantisation",
    ),
)  # fmt: skip

#: Into how many parts libraries split k.
_SPLITS = (1, 2, 4, 8, 16)
_ACTIVATION_BYTES = 2.0
_ACCUMULATOR_BYTES = 4.0
#: Benchmarks rotate up to five copies of the weights, which stay cached together when one is below a sixth of L2.
_CACHED_COPIES = 6.0


def gemm_s(c: KernelCoefficients, m: Numbers, n: Numbers, k: Numbers, *, fused_quantisation: bool = False) -> Any:
    """Seconds of ``activations[m, k] @ weights[k, n]`` on one card; ``m, n, k`` numbers or arrays that broadcast.

    Arithmetic: the best of a library's tiles and splits along k, ``waves · 2·rows·columns·(k/split + startup)`` FLOPs a
    multiprocessor (tile and wave quantisation: NVIDIA, Matrix Multiplication Background User's Guide, sections 3 and 4;
    split-K: Osama et al. 2023, Stream-K, section 2). Memory: stored weights with a start-up ramp, activations in 16 bits.
    Both overlap as a norm. ``fused_quantisation`` leaves out what a separate kernel costs that quantises activations:
    tables time it with the product where an engine at work fuses it into the norm before.
    """
    m, n, k = (np.asarray(size, dtype=float) for size in (m, n, k))
    compute_s = _compute_s(c, m, n, k)
    weights = n * k * c.weight_bytes
    rate = c["stream_share"] * c.bytes_per_s
    activations = _ACTIVATION_BYTES * m * (k + n)
    weights_s = (weights + c["ramp_mb"] * MEGA) / (rate * _gain(c, _CACHED_COPIES * weights + activations))
    memory_s = weights_s + activations / (rate * _gain(c, weights + activations))
    fixed_us = c["fixed_us"]
    quantise_s: Any = 0.0
    if fused_quantisation:
        fixed_us = min(fixed_us, c.values.get("fused_fixed_us", fixed_us))
    else:
        passes_s = c["quantise_passes"] * (_ACTIVATION_BYTES + c.weight_bytes) * m * k / c.bytes_per_s
        quantise_s = rounded_max(passes_s, c["row_ns"] * NANO * m / max(c.multiprocessors, 1.0), 2.0)
    fixed_s = (fixed_us + c["single_row_us"] * (m <= 1)) * MICRO
    return fixed_s + rounded_max(compute_s, memory_s, c["overlap_power"]) + quantise_s


def _gain(c: KernelCoefficients, held: Any) -> Any:
    """How much faster than memory operands move of which ``held`` bytes compete for L2."""
    if c.l2_bytes <= 0:
        return 1.0
    return 1 + (c["cached_gain"] - 1) / (1 + (held / (c["l2_fraction"] * c.l2_bytes)) ** 4)


def _compute_s(c: KernelCoefficients, m: Any, n: Any, k: Any) -> Any:
    """The fastest tile and split for each shape; without multiprocessors one block is the card and nothing is quantised.

    The fuller the tensor cores, the lower the clock that a power cap leaves them: ``power_sag`` more time where no
    multiprocessor ever waits.
    """
    peak = c["compute_share"] * c.flops_per_s
    if c.multiprocessors <= 0:
        return 2 * m * n * (k + c["startup_k"]) / peak
    rule = tile_rules()[int(c["tile_rule"])]
    band = rule.band(m, n)
    best: Any = np.inf
    for rows, columns in rule.tiles:
        blocks = np.ceil(m / rows) * np.ceil(n / columns)
        rate = peak / c.multiprocessors / (1 + c["tile_loss"] * 64 * (1 / rows + 1 / columns))
        step_s = 2 * rows * columns / rate + c["chain_us"] * MICRO / 1024
        allowed = rule.allows(rows, columns)[band]
        for parts in _SPLITS if c["splits_k"] else (1,):
            rounds = waves(blocks * parts, c.multiprocessors, c["wave_tail"])
            seconds = rounds * (k / parts + c["startup_k"]) * step_s
            if parts > 1:
                reduced = _ACCUMULATOR_BYTES * m * n * parts / (c["cached_gain"] * c.bytes_per_s)
                seconds = seconds + c["split_us"] * MICRO + reduced
            best = np.minimum(best, np.where(allowed, seconds, np.inf))
    busy = 2 * m * n * k / c.flops_per_s / best
    return best * (1 + c["power_sag"] * busy)
