"""Megatron-Bridge's table of optimizer offload, value by value: allocated on the last stage of Qwen3-30B-A3B at TP 2, PP 2, EP 4.

Source: NVIDIA-NeMo/Megatron-Bridge docs/training/cpu-offloading.md at 6608201d: 47.2 GB without, 3.8 GB less for each quarter.
"""

from __future__ import annotations

import pytest

import trilemma as tl


@pytest.mark.parametrize(("share", "published_gb"), [(0.0, 47.2), (0.5, 47.2 - 7.6), (1.0, 31.9)])
def test_the_last_stage_holds_what_was_published(share: float, published_gb: float) -> None:
    answer = tl.fit(
        "qwen3-30b-a3b", "h100-sxm:16", seq=4096, global_batch=8, micro_batch=1, tp=2, pp=2, ep=4,
        precision="bf16-bf16-grads", offload=f"optimizer={share}" if share else None,
    )  # fmt: skip
    last = answer.ranks[-1]["memory"]
    allocated = sum(n for name, n in last.items() if name not in ("context", "fragmentation"))
    assert allocated / 1e9 == pytest.approx(published_gb, rel=0.03)
