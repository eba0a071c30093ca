"""Speed of the codecs on one core, beside a plain numpy copy of the same tensor run in the same minute.

    python benchmarks/codec_speed.py [MEGABYTES]

Exits 1 where FP8 falls under 100 MB/s of FP32 input or INT4 groups under 300 MB/s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from trilemma.formats.codecs import dequantise, quantise

#: format: least MB/s of FP32 input
BARS = {
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "fp8_tensor", "fp8_channel", "fp8_block", "mxfp8"), 100),
    **dict.fromkeys(("int4_g128", "int4_g32", "int4_g128_zp4"), 300),
    **dict.fromkeys(
        ("int8_channel", "mxfp4", "nvfp4", "nf4", "nf4_double_quant", "bf16", "q4_0", "q8_0", "q4_k", "q6_k"), 0
    ),
}
RUNS = 3


def fastest_s(work: Callable[[], Any]) -> float:
    """Least processor seconds of a few runs: what else the machine does does not count."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main(megabytes: float) -> int:
    rows = max(128, int(megabytes * 1e6 / 4 / 4096) // 128 * 128)
    values = np.random.default_rng(0).standard_normal((rows, 4096), dtype=np.float32)
    size = values.nbytes / 1e6
    copy_s = fastest_s(values.copy)
    print(f"{size:.0f} MB of FP32, one core; numpy copy {size / copy_s:,.0f} MB/s")
    print(f"{'format':<18}{'quantise MB/s':>15}{'copies':>8}{'dequantise MB/s':>17}{'copies':>8}  bar")
    slow = 0
    for name, bar in BARS.items():
        encoded = quantise(values, name)
        there = fastest_s(lambda name=name: quantise(values, name))
        back = fastest_s(lambda encoded=encoded: dequantise(encoded))
        missed = size / there < bar
        slow += missed
        verdict = "" if not bar else f"{'MISSED' if missed else 'met'} ({bar})"
        print(
            f"{name:<18}{size / there:>15,.0f}{there / copy_s:>8.1f}{size / back:>17,.0f}{back / copy_s:>8.1f}  {verdict}"
        )
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 64))
