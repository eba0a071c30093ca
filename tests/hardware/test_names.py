"""Any spelling in use finds its accelerator; what is not certain is refused or listed as assumed."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trilemma.errors import InputError, UnknownName
from trilemma.hardware import all_accelerators, find, find_measured, parse_gpu_argument
from trilemma.quantities import GIB

FOUND = {
    "h200-sxm": "nvidia-h200-sxm",
    "b300-sxm": "nvidia-b300-sxm",
    "rtx-4090": "nvidia-rtx-4090",
    "4090": "nvidia-rtx-4090",
    "RTX4090": "nvidia-rtx-4090",
    "h20": "nvidia-h20-96gb",
    "h20-141gb": "nvidia-h20-141gb",
    "b200": "nvidia-b200-sxm-180gb",
    "b300": "nvidia-b300-sxm",
    "gb200": "nvidia-gb200",
    "gb300": "nvidia-gb300",
    "l4": "nvidia-l4",
    "l40": "nvidia-l40",
    "l40s": "nvidia-l40s",
    "a10": "nvidia-a10",
    "mi300x": "amd-mi300x",
    "h100-sxm": "nvidia-h100-sxm5-80gb",
    "h100_sxm": "nvidia-h100-sxm5-80gb",
    "h100-nvl": "nvidia-h100-nvl-94gb",
    "h100-96gb": "nvidia-h100-sxm5-96gb-hbm2e",
    "gh200": "nvidia-gh200-96gb",
    "nvidia-h100-sxm5-80gb": "nvidia-h100-sxm5-80gb",
    "rtx-pro-6000": "nvidia-rtx-pro-6000-blackwell",
    "RTX PRO 6000 Blackwell Server": "nvidia-rtx-pro-6000-blackwell-server",
    "rtx-3080": "nvidia-rtx-3080-10gb",
    "rtx-3080-12gb": "nvidia-rtx-3080-12gb",
    "rtx-3060-ti": "nvidia-rtx-3060-ti",
    "m1": "apple-m1",
    "rtx_pro_6000_server": "nvidia-rtx-pro-6000-blackwell-server",
    "rtx-4070-ti": "nvidia-rtx-4070-ti",
    "rtx-4070-ti-super": "nvidia-rtx-4070-ti-super",
    "rtx-6000-ada": "nvidia-rtx-6000-ada",
    "dgx-spark": "nvidia-gb10-dgx-spark",
    "h200_sxm": "nvidia-h200-sxm",
    "b200_sxm": "nvidia-b200-sxm-180gb",
    "B200 SXM 180GB": "nvidia-b200-sxm-180gb",
    "NVIDIA B200-SXM-180GB": "nvidia-b200-sxm-180gb",
    "GB200 NVL72": "nvidia-gb200",
    "A100 SXM 80GB": "nvidia-a100-sxm4-80gb",
    "H100-96GB-HBM2e-2.4TB/s(500W)": "nvidia-h100-sxm5-96gb-hbm2e",
    "H100-80GB(700W)": "nvidia-h100-sxm5-80gb",
    "B200(power-limited)": "nvidia-b200-sxm-180gb-power-limited",
    "AMD Instinct MI300X 192GB HBM3": "amd-mi300x",
    "AMD Instinct MI355X 288GB HBM3e": "amd-mi355x",
    "3090 24GB": "nvidia-rtx-3090",
    "RTX 3070 mobile 8GB (448 GB/s)": "nvidia-rtx-3070-laptop",
    "RTX 5090 FE": "nvidia-rtx-5090",
    "NVIDIA RTX 4090 48GB (modified)": "nvidia-rtx-4090-48gb",
    "M2 Ultra 76-Core GPU 192GB": "apple-m2-ultra",
    "M3 Max 40‑Core GPU 64GB": "apple-m3-max",
    "Apple M3 Pro 18-core GPU 36GB (150 GB/s)": "apple-m3-pro",
    "NVIDIA H100 80GB HBM3": "nvidia-h100-sxm5-80gb",
    "NVIDIA H100 PCIe": "nvidia-h100-pcie-80gb",
    "NVIDIA H200": "nvidia-h200-sxm",
    "NVIDIA A100-SXM4-40GB": "nvidia-a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "nvidia-a100-pcie-80gb",
    "NVIDIA GH200 480GB": "nvidia-gh200-96gb",
    "NVIDIA B300 SXM6 AC": "nvidia-b300-sxm",
    "NVIDIA GeForce RTX 5090": "nvidia-rtx-5090",
    "Tesla T4": "nvidia-t4",
}


@pytest.mark.parametrize(("name", "expected"), FOUND.items())
def test_spellings_in_use(name: str, expected: str):
    assert find(name).id == expected


@pytest.mark.parametrize("accelerator", all_accelerators(), ids=lambda one: one.id)
def test_every_own_name_finds_itself(accelerator):
    for name in (accelerator.id, accelerator.id.upper(), accelerator.name, *accelerator.aliases):
        assert find(name).id == accelerator.id, name
    assert find(accelerator.id.partition("-")[2]).id == accelerator.id


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("h100", ["nvidia-h100-nvl-94gb", "nvidia-h100-pcie-80gb", "nvidia-h100-sxm5-80gb"]),
        ("h200", ["nvidia-h200-nvl", "nvidia-h200-sxm"]),
        ("a100", ["nvidia-a100-pcie-40gb", "nvidia-a100-sxm4-80gb"]),
        ("a100-sxm", ["nvidia-a100-sxm4-40gb", "nvidia-a100-sxm4-80gb"]),
    ],
)
def test_an_ambiguous_name_is_refused_with_its_candidates(name: str, candidates: list[str]):
    with pytest.raises(InputError, match="several accelerators") as error:
        find(name)
    for candidate in candidates:
        assert candidate in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "h300",
        "",
        "   ",
        "nvidia",
        "rtx",
        "b20",
        "h2",
        "00",
        "80gb",
        "h100-class",
        "x" * 10_000,
        "h100\n; rm",
        "h200-pcie",
    ],
)
def test_unknown_names_are_refused_in_one_line(name: str):
    with pytest.raises(InputError) as error:
        find(name)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(("slip", "meant"), [("h20-sxm", "h200-sxm"), ("mi300", "mi300x"), ("rtx-4091", "rtx-4090")])
def test_an_unknown_name_offers_near_ones(slip: str, meant: str):
    with pytest.raises(UnknownName, match=f"did you mean .*{meant}"):
        find(slip)


@pytest.mark.parametrize(
    "name", ["AMD RTX 4090", "NVIDIA MI300X", "H100 SXM 40GB", "MI300X HBM2e", "H100 SXM 350W", "M1 Max 24-core GPU"]
)
def test_words_that_contradict_the_part_are_not_ignored(name: str):
    with pytest.raises(InputError):
        find(name)


@pytest.mark.parametrize(
    ("name", "memory_gib", "expected"),
    [
        ("a100-sxm", 39.5, "nvidia-a100-sxm4-40gb"),
        ("a100-sxm", 79.25, "nvidia-a100-sxm4-80gb"),
        ("h100", 93.02, "nvidia-h100-nvl-94gb"),
        ("h100-sxm5", 79.19, "nvidia-h100-sxm5-80gb"),
    ],
)
def test_a_memory_total_decides(name: str, memory_gib: float, expected: str):
    assert find(name, memory_gib=memory_gib).id == expected


@pytest.mark.parametrize(
    ("name", "total", "expected", "codes"),
    [
        ("NVIDIA H100 80GB", 79.19, "nvidia-h100-sxm5-80gb", ["gpu-part-assumed"]),
        ("H100", None, "nvidia-h100-sxm5-80gb", ["gpu-part-assumed"]),
        ("H100", 93.0, "nvidia-h100-nvl-94gb", []),
        ("A100", 39.5, "nvidia-a100-sxm4-40gb", ["gpu-part-assumed"]),
        ("A100", None, "nvidia-a100-sxm4-80gb", ["gpu-part-assumed"]),
        ("A100-40GB", None, "nvidia-a100-sxm4-40gb", ["gpu-part-assumed"]),
        ("A100 PCIe", None, "nvidia-a100-pcie-80gb", ["gpu-part-assumed"]),
        ("H200", None, "nvidia-h200-sxm", ["gpu-part-assumed"]),
        ("NVIDIA RTX 5090", 31.4, "nvidia-rtx-5090", []),
        ("NVIDIA RTX 4060", 8.0, "nvidia-rtx-4060", []),
        ("rtx-4090", 11.0, "nvidia-rtx-4090", ["gpu-total-differs"]),
        ("Pi CM5 - 16GB (Nvidia RTX 3080 Ti (external))", None, "nvidia-rtx-3080-ti", []),
        ("Dell Pro Max with GB10 (Nvidia Spark)", None, "nvidia-gb10-dgx-spark", []),
        ("Mac Studio (M3 Ultra 512GB)", None, "apple-m3-ultra", []),
        ("8x B200", None, "nvidia-b200-sxm-180gb", []),
        ("16x A100 80GB", None, "nvidia-a100-sxm4-80gb", ["gpu-part-assumed"]),
    ],
)
def test_rows_of_measured_tables(name: str, total: float | None, expected: str, codes: list[str]):
    accelerator, warnings = find_measured(name, total)
    assert accelerator.id == expected
    assert [warning.code for warning in warnings] == codes


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "NVIDIA RTX 5070 Ti 16GB + RTX 5090D 32GB",
        "MI300X (x32), MI325X (x16)",
        "Pi 5 - 16GB",
        "Dell Optiplex 780 (C2Q Q8400)",
    ],
)
def test_rows_without_one_known_accelerator_are_refused(name: str):
    with pytest.raises(InputError):
        find_measured(name)


def test_unified_memory_takes_the_size_in_the_name():
    assert find("m3-max").label_gb == 128
    small = find("m3-max-64gb")
    assert small.label_gb == 64
    assert small.runtime_total().high < 64 * GIB


@pytest.mark.parametrize(
    ("text", "count"), [("h200-sxm:8", 8), ("h200-sxm", 1), ("nvidia h200:1", 1), ("h200-sxm:1048576", 2**20)]
)
def test_gpu_argument(text: str, count: int):
    accelerator, gpus = parse_gpu_argument(text)
    assert (accelerator.id, gpus) == ("nvidia-h200-sxm", count)


@pytest.mark.parametrize(
    "text",
    ["h200-sxm:0", "h200-sxm:-4", "h200-sxm:1e9", "h200-sxm:99999999999", "h200-sxm:1.5", "h200-sxm:", ":8", "", ":"],
)
def test_absurd_counts_are_refused(text: str):
    with pytest.raises(InputError):
        parse_gpu_argument(text)


@pytest.mark.slow
@example("~\0")
@given(st.text(max_size=60))
def test_no_text_breaks_the_lookup(text: str):
    for ask in (find, find_measured, parse_gpu_argument):
        with contextlib.suppress(InputError):
            ask(text)
