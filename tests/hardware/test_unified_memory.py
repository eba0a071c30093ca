"""What Macs offer their GPU, by the start-up lines of llama.cpp."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.engines.start_up import CardMemory
from trilemma.hardware.catalogue import find
from trilemma.hardware.memory import runtime_total
from trilemma.quantities import GIB


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [
        ("m3-ultra-512gb", 498216.21), ("m4-max-128gb", 115448.73), ("m1-max-64gb", 55662.79), ("m4-pro-48gb", 40200.90),
        ("m4-16gb", 12713.12), ("m3-ultra-256gb", 239000),
    ],
)  # fmt: skip
def test_the_working_set_is_that_of_logs(name: str, megabytes: float) -> None:
    total = runtime_total(find(name)).interval
    assert total.value / 1e6 == pytest.approx(megabytes, rel=1e-3)
    assert total.low <= total.value <= total.high


@pytest.mark.parametrize(("name", "megabytes"), [("m1-pro-16gb", 11453.25), ("m2-ultra-192gb", 154618.82)])
def test_older_systems_lie_within_the_bounds(name: str, megabytes: float) -> None:
    total = runtime_total(find(name)).interval
    assert total.low * 0.999 <= megabytes * 1e6 < total.value


def test_more_memory_never_offers_less() -> None:
    sizes = [runtime_total(find(f"m3-ultra-{size}gb")).interval.value for size in (96, 256, 512)]
    assert sizes == sorted(sizes)


def test_a_mixture_of_671_b_fits_the_largest_machine_alone() -> None:
    asked = {"engine": "llama.cpp", "precision": "Q4_K_M", "context": 8192}
    assert tl.fit("deepseek-v3.1", "m3-ultra-512gb", **asked).fits
    small = tl.fit("deepseek-v3.1", "m3-ultra-256gb", **asked).to_dict()
    assert not small["fits"] or small["memory"]["capacity_bytes"] < 240e9


def test_a_no_by_a_hair_does_not_say_that_nothing_is_left() -> None:
    """The verdict's words and the ledger agree."""
    for size in range(1, 41):
        answer = tl.fit(
            "qwen3-32b", "m3-ultra-96gb", engine="llama.cpp", precision="Q8_0", context=size * 1024
        ).to_dict()
        if answer["verdict"]["stage"] == "oom_profile" and answer["memory"]["headroom_bytes"] > 0:
            assert "nothing is left" not in answer["reason"]


@pytest.mark.parametrize(
    ("gpu", "gib"), [("gb10", 7.0), ("jetson-orin-nano-8gb", 0.45), ("m3-max", 0.0), ("h200-sxm", 0.0)]
)
def test_the_system_holds_a_share_of_memory_that_it_shares_with_nvidias_cards(gpu: str, gib: float) -> None:
    """SGLang on a DGX Spark finds 112 of 119.7 GiB free (jethac/dgx-spark-hijinks); what is told of free memory wins."""
    card = CardMemory.of(find(gpu), capacity_bytes=None, free_bytes=None)
    assert (card.capacity_bytes - card.free_bytes) / GIB == pytest.approx(gib, abs=0.15)
    told = CardMemory.of(find(gpu), capacity_bytes=None, free_bytes=5 * GIB)
    assert told.free_bytes == 5 * GIB
