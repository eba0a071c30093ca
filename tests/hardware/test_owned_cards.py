"""Cards that people own: old ones without matrix units, refits, other makers; and the engines that are too new for them."""

from __future__ import annotations

import pytest

from trilemma.cli.main import main
from trilemma.engines.cards import that_run_on
from trilemma.formats import catalogue
from trilemma.hardware import find, runtime_total
from trilemma.hardware.number_formats import runs
from trilemma.quantities import GIB, MIB


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("Tesla P40", "nvidia-tesla-p40"),
        ("p100", "nvidia-tesla-p100-pcie-16gb"),
        ("NVIDIA GeForce GTX 1080 Ti", "nvidia-gtx-1080-ti"),
        ("gtx 1060", "nvidia-gtx-1060-6gb"),
        ("MI50", "amd-mi50-16gb"),
        ("mi50 32gb", "amd-mi50-32gb"),
        ("2080 Ti 22GB", "nvidia-rtx-2080-ti-22gb"),
        ("3080 20gb", "nvidia-rtx-3080-20gb"),
        ("Arc Pro B70", "intel-arc-pro-b70"),
        ("910B3", "huawei-ascend-910b"),
        ("Atlas 800I A3", "huawei-ascend-910c"),
        ("orin nano", "nvidia-jetson-orin-nano-8gb"),
    ],
)
def test_names_that_people_use(name: str, card: str) -> None:
    assert find(name).id == card


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("gtx-1080-ti", 10.91),  # yezhen17/3DIoUMatch-PVRCNN issue 3
        ("p100", 15.90),
        ("910b", 60.97),  # zai-org/CogVideo issue 63, vllm-project/vllm-ascend issue 1987
        ("910c", 61.27),  # sgl-project/sglang issue 29838
    ],
)
def test_totals_that_out_of_memory_messages_print(name: str, gib: float) -> None:
    assert runtime_total(find(name)).interval.value / GIB == pytest.approx(gib, abs=0.005)


def test_error_correction_takes_its_bits_of_a_p40() -> None:
    """24,576 MiB with ECC off (dphnAI/sonar issue 522), 23,040 as delivered: one sixteenth."""
    total = find("p40").nvml_total_bytes
    assert total is not None
    assert {one.value / MIB for one in (total, *total.alternatives)} == {24576, 23040}


@pytest.mark.parametrize(("name", "terms"), [("p40", 347.1e9), ("mi50", 1.024e12), ("b70", 608e9), ("gtx-1070", 256e9)])
def test_bandwidths_of_data_sheets(name: str, terms: float) -> None:
    assert find(name).bandwidth_bytes_per_s.value == terms


def test_pascal_multiplies_in_32_bits_or_in_integers() -> None:
    """FP16 at 1/64 of FP32 on all but the P100; INT8 by DP4A at four times FP32."""
    for name in ("p40", "gtx-1060", "gtx-1070", "gtx-1080", "gtx-1080-ti"):
        card = find(name)
        assert card.peak_flops["fp16"].value == card.peak_flops["fp32"].value
        assert card.peak_flops["int8"].value == pytest.approx(4 * card.peak_flops["fp32"].value, rel=0.01)
    p100 = find("p100")
    assert p100.peak_flops["fp16"].value == pytest.approx(2 * p100.peak_flops["fp32"].value, rel=0.01)
    assert "int8" not in p100.hardware_formats
    for name in ("p40", "p100"):
        assert runs(catalogue.get("q4_k"), catalogue.get("fp16"), find(name)).how == "expanded"
        assert runs(catalogue.get("fp8_e4m3"), catalogue.get("fp16"), find(name)).how == "no"


def test_engines_too_new_for_a_card_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "llama-3.1-8b", "--gpu", "p40", "--context", "4096"]) == 2
    assert (
        "from compute capability 7 on, and Tesla P40 has 6.1; use --engine llama.cpp or ollama"
        in capsys.readouterr().err
    )
    assert main(["plan", "llama-3.1-8b", "--gpu", "gtx-1080-ti", "--serve", "512/128"]) == 2
    assert "compute capability 7" in capsys.readouterr().err
    assert that_run_on(find("p40")) == ("llama.cpp", "ollama", "lm-studio")
    assert "vllm" in that_run_on(find("v100-sxm2-16gb"))


def test_an_old_card_serves_a_small_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "llama-3.1-8b", "--precision", "q4_k_m", "--engine", "llama.cpp", "--context", "4096"]
    assert main([*words, "--gpu", "p40"]) == 0
    assert "FITS" in capsys.readouterr().out
