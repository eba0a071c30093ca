"""How long kernel times take: one data file, one call, a hundred thousand shapes. Run: python benchmarks/kernels.py"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from trilemma.hardware import find
from trilemma.timing.kernels import decode_attention_s, experts_s, gemm_s, kernel_coefficients, prefill_attention_s
from trilemma.timing.kernels.ladder import _card_entries

_SHAPES = 100_000


def _seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    card = find("nvidia-h200-sxm")

    def load() -> None:
        _card_entries.cache_clear()
        _card_entries(card.id)

    print(f"one data file            {_seconds(load) * 1e3:8.2f} ms")
    rng = np.random.default_rng(0)
    m, n, k = (rng.integers(1, 16384, _SHAPES) for _ in range(3))
    heads = 8 * rng.integers(1, 9, _SHAPES)
    calls: dict[str, Callable[[Any], Any]] = {
        "gemm": lambda c: gemm_s(c, m, n, k),
        "decode_attention": lambda c: decode_attention_s(c, m % 512 + 1, n, heads, 8, 128),
        "prefill_attention": lambda c: prefill_attention_s(c, 1, m, heads, 8, 128),
        "experts": lambda c: experts_s(c, m, 7168, 2048, 8, 256, ep=8, skew=1.01),
    }
    for kernel, call in calls.items():
        coefficients, rung = kernel_coefficients(card, "vllm", kernel, head_dim=128)
        each = _seconds(lambda call=call, c=coefficients: call(c), 3) / _SHAPES
        print(f"{kernel:<18} {each * 1e6:12.3f} µs a shape over {_SHAPES:,} shapes ({rung.name})")


if __name__ == "__main__":
    main()
