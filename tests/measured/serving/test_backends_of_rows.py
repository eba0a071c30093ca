"""Backends of llama.cpp on one chip (RDNA3.5): what people measured under HIP, Vulkan and their libraries."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.hardware.catalogue import find
from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.figures import predict
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import Row
from trilemma.timing.eras import backend_factors, backend_in, era_of
from trilemma.timing.serving_terms import chips_of, shipped

CARD = "ryzen-ai-max-395"


def question(**cells: str) -> SpeedQuestion:
    row = {
        "model": "llama-3.1-8b", "precision_weights": "q4_0", "gpu": "Radeon 8060S (Ryzen AI Max+ 395, 128 GB)", "gpus": "1",
        "tp": "1", "engine": "llama.cpp", "isl": "512", "osl": "0", "concurrency_or_batch": "1", "metric": "prefill_tok_s",
        "value": "1", "tier": "B", "version": "b9049",
    }  # fmt: skip
    return read_speed_question(Row(id="r", line=1, cells=row | cells), None)


def rate(**cells: str) -> float:
    bench = benches_of([question(**cells)])[0]
    return float(predict(bench, shipped().factors(bench.engine, bench.machine.accelerator, bench.precision))[0])


DECODE = {"isl": "0", "osl": "128", "metric": "decode_tok_s"}


@pytest.mark.parametrize(
    ("cells", "per_s", "within"),
    [
        # hogeheer499-commits/strix-halo-guide BACKEND_CROSSOVER.md and BENCHMARKS.md, one source of May 2026 under both
        ({"model": "qwen3-30b-a3b", "precision_weights": "q4_k_s", "notes": "backend=vulkan; fa=1"}, 98.5, 0.15),
        ({"model": "qwen3-30b-a3b", "precision_weights": "q4_k_m", "notes": "backend=hip; fa=1"}, 68.3, 0.15),
        ({"model": "qwen3.6-35b-a3b", "precision_weights": "q4_k_m", "notes": "backend=vulkan; fa=1"}, 76.9, 0.15),
        ({"model": "qwen3.6-35b-a3b", "precision_weights": "ud-q4_k_m", "notes": "backend=vulkan; fa=1"}, 62.6, 0.15),
        ({"model": "gpt-oss-120b", "precision_weights": "mxfp4", "notes": "backend=vulkan; fa=1"}, 55.6, 0.15),
        # noamsto/nix-amd-ai issue 61, builds of August 2026
        ({"model": "qwen3.6-27b", "precision_weights": "q4_k_m", "notes": "backend=vulkan; fa=1"}, 12.56, 0.1),
        ({"model": "qwen3.6-27b", "precision_weights": "q4_k_m", "notes": "backend=rocm-7.14; fa=1"}, 11.2, 0.1),
        # geerlingguy/ai-benchmarks issue 21, b6096: 16 bits beside the experts
        (
            {"model": "gpt-oss-20b", "precision_weights": "f16", "version": "b6096", "notes": "backend=vulkan"},
            45.0,
            0.2,
        ),
    ],
)
def test_a_reader_is_told_by_file_and_backend(cells: dict[str, str], per_s: float, within: float) -> None:
    """Tokens a second; HIP's were 22 % slower, or 20 % faster, before backends and files were told apart."""
    assert rate(**DECODE, **cells) == pytest.approx(per_s, rel=within)


@pytest.mark.parametrize(
    ("cells", "per_s", "within"),
    [
        ({"precision_weights": "q4_k_s", "notes": "backend=hip; fa=1", "version": "b7700"}, 996, 0.35),  # llama.cpp pull 18749
        ({"notes": "backend=vulkan; fa=1", "version": "b7700"}, 645, 0.35),
        # pull 26419, August 2026, head dimensions of 256: nothing before the prompt, and 65,536 tokens
        ({"model": "qwen3.6-35b-a3b", "precision_weights": "q4_k_m", "version": "c841aeeb8",
          "notes": "backend=rocm; fa=1; -ub 2048"}, 1057, 0.3),
        (
            {"model": "qwen3.6-35b-a3b", "precision_weights": "q4_k_m", "version": "c841aeeb8", "isl": "66048",
             "notes": "backend=rocm; fa=1; -ub 2048; depth=65536"}, 390, 0.3,
        ),
        # nix-amd-ai issue 61: 27B, prompts of 512 and of 32,768
        ({"model": "qwen3.6-27b", "precision_weights": "q4_k_m", "notes": "backend=rocm-7.14; fa=1"}, 315, 0.2),
        ({"model": "qwen3.6-27b", "precision_weights": "q4_k_m", "isl": "32768", "notes": "backend=rocm-7.14; fa=1"}, 223, 0.25),
        ({"model": "qwen3.6-27b", "precision_weights": "q4_k_m", "notes": "backend=vulkan; fa=1"}, 255, 0.2),
        ({"model": "gpt-oss-20b", "precision_weights": "f16", "version": "b6096", "notes": "backend=vulkan"}, 564, 0.4),
    ],
)  # fmt: skip
def test_a_prompt_is_told_by_backend_build_and_depth(cells: dict[str, str], per_s: float, within: float) -> None:
    assert rate(**cells) == pytest.approx(per_s, rel=within)


def test_libraries_and_fused_attention_of_2025():
    # kyuz0/amd-strix-halo-toolboxes docs/benchmarks.md of August 2025: hipBLASLt 2.2 to 2.5 times as fast, fused attention
    # without rocWMMA 21 % slower
    old = {"model": "gemma-3-12b-it", "precision_weights": "q8_0", "version": "b6182"}
    with_library, without = (rate(**old, notes=f"backend=hip; fa=; hipblaslt={value}; ") for value in ("1", ""))
    assert 1.8 < with_library / without < 3
    fused, in_matrices = (rate(**old, notes=f"backend={name}; fa=-fa 1; hipblaslt=1; ") for name in ("hip", "rocwmma"))
    assert fused < with_library < in_matrices
    assert fused / with_library == pytest.approx(0.79, abs=0.12)


def test_words_of_devices_name_backends():
    words = ("Vulkan0", "ROCm1", "llama.cpp-rocwmma", "vulkan_amdvlk", "hip", "CUDA0", "cpu")
    assert [backend_in(word) for word in words] == ["vulkan", "rocm", "rocwmma", "amdvlk", "rocm", "cuda", None]
    ages = [question(notes=f"backend=hip; hipblaslt={value}; ", version="b6182").factors for value in ("", "1")]
    assert ages[0] != ages[1]
    assert backend_factors("vllm", None, find(CARD), "vulkan") == {}
    assert (
        era_of("llama.cpp", None, find("rtx-3090"), backend="vulkan").factors
        == era_of("llama.cpp", None, find("rtx-3090")).factors
    )


def test_memory_of_one_maker_says_nothing_of_anothers_products():
    """GB10's runs tell of unified memory under NVIDIA's tensor cores; an APU of AMD has neither."""
    assert chips_of(find(CARD)) == "RDNA3.5 shared"
    assert chips_of(find("gb10")) == "Blackwell unified"
    factors = [shipped().factors("llama.cpp", find(CARD), f"{bits} bf16") for bits in ("4-bit", "8-bit")]
    assert factors[0] == factors[1]


def test_a_device_named_in_a_command_is_heard():
    command = "llama-server -m qwen3-30b-a3b-q4_k_m.gguf -hf unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M -c 4096 --parallel 1"
    rocm, vulkan = (
        tl.check(f"{command} {device}".strip(), gpu=CARD, isl=128, osl=128, concurrency=1).speed.tpot_s.interval.value
        for device in ("--device ROCm0", "--device Vulkan0")
    )
    assert vulkan < rocm
