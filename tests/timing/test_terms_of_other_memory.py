"""What runs on HBM and on full-rate units tell of GDDR cards and of GeForce, and what PCIe carried before a newer NCCL."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.number_formats import halves_sums
from trilemma.models.resolve import load_model
from trilemma.timing import Machine, model_work
from trilemma.timing.coefficients import coefficients_for
from trilemma.timing.collectives import all_reduce_s
from trilemma.timing.serving_terms import shipped


def machine(card: str, engine: str, version: str | None = None, gpus: int = 1) -> Machine:
    accelerator = find(card)
    work = model_work(load_model("llama-3.1-8b"), accelerator)
    cluster = Cluster(accelerator=accelerator, gpus=gpus, gpus_per_node=gpus)
    return Machine.serving(cluster, work=work, engine=engine, version=version)


@pytest.mark.parametrize("card", ["rtx-4090", "rtx-3090", "rtx-5090"])
def test_geforce_sums_in_fp32_at_half_rate(card: str) -> None:
    assert halves_sums(find(card))
    assert machine(card, "vllm").coefficients.matmul_share("bf16") == 0.95
    assert machine("rtx-4090", "llama.cpp").coefficients.matmul_share("bf16") < 0.9  # it sums in FP16, at the full rate


@pytest.mark.parametrize("card", ["rtx-6000-ada", "l40s", "rtx-pro-6000", "a100-sxm4-80gb", "h100-sxm"])
def test_other_cards_do_not(card: str) -> None:
    assert not halves_sums(find(card))


def test_what_attention_loses_on_hbm_is_not_carried_to_gddr() -> None:
    for card in ("rtx-4090", "l40s"):
        assert machine(card, "vllm").coefficients.cache_stream == coefficients_for(find(card), "vllm").cache_stream
    hopper = find("h100-sxm")
    assert machine("h100-sxm", "vllm").coefficients.cache_stream < 0.8 * coefficients_for(hopper, "vllm").cache_stream


def test_an_engine_that_was_run_on_such_cards_keeps_its_terms() -> None:
    assert shipped().untold("llama.cpp", find("rtx-4090"), "16-bit bf16") == frozenset()
    assert shipped().untold("vllm", find("h100-sxm"), "16-bit bf16") == frozenset()
    assert shipped().untold("vllm", find("rtx-4090"), "16-bit bf16") == {"cache_stream", "matmul", "prefill_matmul"}
    assert shipped().untold("vllm", find("rtx-4090"), "4-bit bf16") == {"cache_stream"}  # their kernels expand weights


def test_all_reduce_over_pcie_by_the_age_of_nccl() -> None:
    """1 MiB on two RTX PRO 6000: bus bandwidth 11.5 GB/s under vLLM 0.19.0 and 34.8 GB/s under 0.24.0 (tables of
    aiconfigurator); for two cards bus bandwidth is bytes over time."""
    old, new = (
        float(np.asarray(all_reduce_s(2**20, 2, machine("rtx-pro-6000-server", "vllm", version, gpus=2).wires)))
        for version in ("0.19.0", "0.24.0")
    )
    assert old == pytest.approx(2**20 / 11.5e9, rel=0.12)
    assert new < 0.8 * old


def test_the_server_edition_has_slower_memory() -> None:
    """NVIDIA: 1,597 GB/s; the workstation edition 1,792 GB/s."""
    assert find("RTX PRO 6000 Blackwell Server Edition").bandwidth_bytes_per_s.value == 1.597e12
    assert find("NVIDIA RTX PRO 6000 Blackwell Workstation Edition").bandwidth_bytes_per_s.value == 1.792e12
