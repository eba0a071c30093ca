"""Every shipped accelerator file loads and holds figures that a machine can have."""

import math

import numpy as np
import pytest

from trilemma.data.digest import DATA
from trilemma.data.files import read_data
from trilemma.hardware import all_accelerators, find, runtime_total
from trilemma.hardware.accelerator import Accelerator, Figure
from trilemma.hardware.catalogue import head_of
from trilemma.hardware.memory import driver_gap_bytes
from trilemma.quantities import GIB, MIB
from trilemma.report.accelerators import figures

ALL = all_accelerators()
EVERY = pytest.mark.parametrize("accelerator", ALL, ids=lambda one: one.id)
#: Parts whose FP8 is no faster than BF16, as their makers publish.
FP8_AT_BF16_RATE = {"intel-gaudi3"}


def test_the_catalogue_is_wide():
    assert len(ALL) >= 100
    assert {one.vendor for one in ALL} == {"NVIDIA", "AMD", "Intel", "Google", "AWS", "Apple", "Huawei"}


def test_the_index_of_names_is_what_the_files_say():
    """A file that it does not name yet is read for its names; one that it names otherwise would not be found."""
    told = {path.stem: head_of(path) for path in (DATA / "accelerators").glob("*.toml")}
    index = read_data("accelerators/index.json")
    assert {name: told.get(name) for name in index} == index, "run scripts/index_accelerators.py"


@EVERY
def test_every_figure_names_its_source(accelerator: Accelerator):
    for _name, _unit, figure in figures(accelerator):
        for claim in (figure, *figure.alternatives):
            assert len(claim.source) > 5
            assert claim.as_of[:2] == "20", claim
            assert math.isfinite(claim.value)


@EVERY
def test_a_conflict_is_never_left_unexplained(accelerator: Accelerator):
    for name, _unit, figure in figures(accelerator):
        for other in figure.alternatives:
            assert other.why or figure.why, f"{accelerator.id} {name}: {other}"


@EVERY
def test_sources_are_written_out(accelerator: Accelerator):
    keys = {"MLE", "AIC", "REC", "DER", "SYS", "HMC", "NSMI", "IXC"}
    for _name, _unit, figure in figures(accelerator):
        for claim in (figure, *figure.alternatives):
            assert not keys & set(claim.source.replace(";", " ").split()), claim.source


@EVERY
def test_peaks_are_dense_and_ordered(accelerator: Accelerator):
    peaks = {fmt: figure.value for fmt, figure in accelerator.peak_flops.items()}
    for fmt, sparse in accelerator.sparse_peak_flops.items():
        assert peaks[fmt] <= sparse.value <= 2.01 * peaks[fmt]
    sixteen = peaks.get("bf16", peaks.get("fp16"))
    assert sixteen is not None
    if "fp8" in accelerator.hardware_formats:
        assert peaks["fp8"] >= sixteen
        assert (peaks["fp8"] > 1.4 * sixteen) != (accelerator.id in FP8_AT_BF16_RATE)
    for fmt in ("nvfp4", "mxfp4"):
        if fmt in peaks:
            assert peaks[fmt] >= peaks["fp8"]
    assert 1e12 < sixteen < 1e16


@EVERY
def test_formats_in_hardware_have_a_peak(accelerator: Accelerator):
    for fmt in accelerator.hardware_formats:
        if fmt not in ("fp64", "mxfp6", "bf16"):
            assert accelerator.peak(fmt) is not None, fmt
    assert ("fp8" in accelerator.hardware_formats) or accelerator.fp8_flavour is None
    assert accelerator.peak("nvfp4") is None or accelerator.vendor == "NVIDIA"


@EVERY
def test_bandwidth_and_power_are_plausible(accelerator: Accelerator):
    assert 0.05e12 <= accelerator.bandwidth_bytes_per_s.value <= 25e12
    if accelerator.link is not None:
        assert 40e9 <= accelerator.link.bytes_per_s.value <= 2e12
        assert accelerator.link.domain >= 2 or accelerator.id.startswith("nvidia-gh200")
    if accelerator.tdp_w is not None:
        assert 60 <= accelerator.tdp_w.value <= 2500
    if accelerator.pcie_bytes_per_s is not None:
        assert 7e9 < accelerator.pcie_bytes_per_s.value < 130e9
    if accelerator.usd_per_hour is not None:
        assert 0.1 < accelerator.usd_per_hour.low <= accelerator.usd_per_hour.high < 20
        assert accelerator.price_source
        assert accelerator.price_as_of


@EVERY
def test_memory_figures_agree(accelerator: Accelerator):
    total = runtime_total(accelerator)
    interval = total.interval
    assert 0.6 * accelerator.label_gb * 1e9 <= interval.low <= interval.value <= interval.high
    assert interval.high <= accelerator.label_gb * GIB * (1 + 1e-9)
    nvml, runtime = accelerator.nvml_total_bytes, accelerator.runtime_total_bytes
    if nvml is not None:
        assert nvml.value % MIB == 0
        assert interval.value <= nvml.value
    if nvml is not None and runtime is not None:
        assert runtime.value <= nvml.value
    assert total.assumed == (runtime is None or runtime.recalled)
    assert interval.high > interval.low or accelerator.vendor == "AMD"


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("h100-sxm", 79.19), ("h100-nvl", 93.02), ("h200-sxm", 139.80), ("b200-sxm", 178.36), ("b300-sxm", 267.69),
        ("gh200", 94.5), ("gb200", 184.31), ("gb300", 276.50), ("mi300x", 191.98), ("mi325x", 255.98), ("mi355x", 287.98),
        ("l4", 22.04), ("rtx-4090", 23.52), ("rtx-3090", 23.57), ("rtx-5090", 31.36), ("rtx-pro-6000", 94.97),
        ("rtx-pro-4500", 31.38), ("a100-sxm4-40gb", 39.5), ("rtx-4090-48gb", 47.4), ("t4", 14.56), ("gb10", 121.69),
    ],
)  # fmt: skip
def test_runtime_totals_are_those_that_logs_show(name: str, gib: float):
    figure = find(name).runtime_total_bytes
    assert figure is not None
    assert not figure.recalled
    assert figure.value / GIB == pytest.approx(gib, abs=0.006)


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("h100-sxm", 81559),
        ("h200-sxm", 143771),
        ("b200-sxm", 183359),
        ("b300-sxm", 275040),
        ("l40s", 46068),
        ("l4", 23034),
    ],
)
def test_driver_totals_are_those_that_nvidia_smi_shows(name: str, mib: int):
    figure = find(name).nvml_total_bytes
    assert figure is not None
    assert figure.value == mib * MIB


def _both_totals() -> list[Accelerator]:
    """Cards with memory of their own whose driver's total is known and whose runtime total a log shows."""
    cards = [one for one in ALL if one.vendor == "NVIDIA" and not one.unified_memory and one.nvml_total_bytes]
    return [one for one in cards if one.runtime_total_bytes and not one.runtime_total_bytes.recalled]


def test_the_gap_rule_follows_from_the_cards_that_show_both_totals():
    ratios = []
    for one in _both_totals():
        assert one.nvml_total_bytes is not None
        assert one.runtime_total_bytes is not None
        expected = driver_gap_bytes(one.nvml_total_bytes.value, one)
        gap = one.nvml_total_bytes.value - one.runtime_total_bytes.value
        ratios.append((gap / expected.value, expected.low <= gap <= expected.high))
    assert len(ratios) >= 25
    assert np.median([ratio for ratio, _ in ratios]) == pytest.approx(1.0, abs=0.05)
    assert 0.90 <= np.mean([inside for _, inside in ratios]) <= 1.0


@pytest.mark.parametrize("one", _both_totals(), ids=lambda one: one.id)
def test_an_inferred_total_lies_near_the_measured_one(one: Accelerator):
    """Hide the runtime's figure: inference from the driver's total must land within 0.9 GiB or 1.5 %."""
    from dataclasses import replace

    blind = runtime_total(replace(one, runtime_total_bytes=None))
    assert one.runtime_total_bytes is not None
    assert blind.assumed
    assert abs(blind.interval.value - one.runtime_total_bytes.value) < max(
        0.6 * GIB, 0.015 * one.runtime_total_bytes.value
    )


def test_traps_of_popular_tables_are_not_copied():
    b300, h100, mi300x, l4 = (find(name) for name in ("b300-sxm", "h100-sxm", "mi300x", "l4"))
    assert b300.peak_flops["int8"].value < 0.2e15 < 4e15 < max(b300.peak_flops["int8"].claims)
    assert b300.peak_flops["nvfp4"].value == 13.5e15
    assert h100.peak_flops["bf16"].value == pytest.approx(989.4e12)
    assert h100.peak("nvfp4") is None
    assert h100.peak("int4") is None
    assert mi300x.fp8_flavour == "fnuz"
    assert find("mi355x").fp8_flavour == "ocp"
    assert l4.bandwidth_bytes_per_s.value == 300e9
    assert l4.inline_ecc
    assert find("rtx-5090").compute_capability == 12.0
    assert find("h100-sxm").link is not None
    assert find("h100-sxm").link.bytes_per_s.value == 450e9  # type: ignore[union-attr]


def test_rack_domains():
    link = find("gb200").link
    assert link is not None
    assert (link.domain, link.domain_in_common_use) == (72, 64)
    assert find("gb300").gpus_per_node == 4


def test_a_figure_lists_all_that_is_claimed():
    figure = Figure(value=1.0, source="a", alternatives=(Figure(value=2.0, source="b"),))
    assert figure.claims == (1.0, 2.0)
