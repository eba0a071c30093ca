"""Fixed times of kernels at the clock of a card, and collectives over PCIe by release, beside what tables of kernels measured."""

from __future__ import annotations

import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.timing import Machine, model_work
from trilemma.timing.coefficients import coefficients_for

#: Clocks of the datasheets, FP32 peak over lanes: 82.6 TFLOP/s of 128 multiprocessors, 104.8 of 170, 35.6 of 82.
CLOCKS_GHZ = {"rtx-4090": 2.52, "rtx-5090": 2.41, "rtx-3090": 1.70, "l40s": 2.52}


@pytest.mark.parametrize(("card", "clock"), list(CLOCKS_GHZ.items()))
def test_kernels_take_cycles(card: str, clock: float) -> None:
    own = coefficients_for(find(card), "vllm")
    for name, seconds in {"kernel_s": 2.2e-6, "attention_kernel_s": 12e-6, "experts_kernel_s": 25e-6}.items():
        assert getattr(own, name) == pytest.approx(seconds * 1.8 / clock, rel=0.01)


def test_decode_attention_leaves_what_tables_of_an_l40s_say() -> None:
    # ai-dynamo/aiconfigurator, decode attention at no bytes: 7.7 us under vLLM on L40S, 11.2 on H100
    ada, hopper = (coefficients_for(find(card), "vllm").attention_kernel_s for card in ("l40s", "h100-sxm"))
    assert ada / hopper == pytest.approx(7.7 / 11.2, rel=0.1)


def test_an_engine_with_launches_of_its_own_keeps_them() -> None:
    assert coefficients_for(find("rtx-4090"), "llama.cpp").kernel_s == pytest.approx(5e-6)
    assert coefficients_for(find("h100-sxm"), "vllm").kernel_s == pytest.approx(2.2e-6)


def _over_pcie(version: str | None) -> tuple[float, float]:
    """Seconds of latency and bytes a second of a collective on two cards, of 64 GB/s."""
    card = find("rtx-pro-6000-blackwell")
    work = model_work(load_model("qwen3-30b-a3b"), card)
    own = Machine.serving(Cluster.of(card, 2), work=work, engine="vllm", version=version).coefficients
    return float(own.pcie_latency_s), float(own.pcie_share) * 64e9


def test_collectives_over_pcie_by_release() -> None:
    # the same tables, all_reduce on two RTX PRO 6000: 14.2 us + 14.5 GB/s under vLLM 0.19.0, 4.3 us + 37.8 GB/s under 0.24.0
    new, old = _over_pcie("0.24.0"), _over_pcie("0.19.0")
    assert _over_pcie(None) == new
    assert new[0] == pytest.approx(4.3e-6, rel=0.3)
    assert new[1] == pytest.approx(37.8e9, rel=0.3)
    assert old[0] > 2 * new[0]
    assert old[1] == pytest.approx(14.5e9, rel=0.05)
