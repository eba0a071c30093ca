"""File types of llama-quantize against what llama.cpp prints of published files."""

from __future__ import annotations

from collections import Counter

import pytest

from trilemma.engines.loading import weights_relative
from trilemma.models.quantized.schemes import requantize
from trilemma.models.resolve import load_model
from trilemma.quantities import GIB


def _mixed(name: str, mix: str) -> list:
    return [t for t in requantize(load_model(name), mix).tensors if t.part not in ("vision", "mtp")]


@pytest.mark.parametrize(
    ("name", "mix", "gib", "within"),
    [
        # ggml-org/llama.cpp issue 14235: file size = 17.28 GiB
        ("qwen3-30b-a3b", "Q4_K_M", 17.28, 0.005),
        # ggml-org/llama.cpp issue 8164: llama 8B Q6_K
        ("llama-3.1-8b", "Q6_K", 6.14, 0.006),
        # ggml-org/llama.cpp pull 6083: llama 7B Q4_0
        ("llama-2-7b", "Q4_0", 3.56, 0.005),
        # geerlingguy/ai-benchmarks issue 51: llama 3B Q4_K - Medium, tied embeddings
        ("llama-3.2-3b", "Q4_K_M", 1.87, 0.006),
        # ggml-org/llama.cpp pull 20395: gpt-oss 120B MXFP4 MoE (biases and sinks are FP32 there)
        ("gpt-oss-120b", "mxfp4_moe", 59.02, 0.15),
    ],
)
def test_file_sizes_that_llama_cpp_prints(name: str, mix: str, gib: float, within: float) -> None:
    assert sum(t.bytes for t in _mixed(name, mix)) / GIB == pytest.approx(gib, abs=within)


def test_counts_of_types_that_llama_cpp_prints() -> None:
    """ggml-org/llama.cpp issue 14235: 241 f32, 289 q4_K, 49 q6_K tensors in Qwen3-30B-A3B Q4_K_M."""
    counts = Counter(t.format.name for t in _mixed("qwen3-30b-a3b", "Q4_K_M"))
    assert (counts["fp32"], counts["q4_k"], counts["q6_k"]) == (241, 289, 49)


def test_layers_that_get_more_bits() -> None:
    down = [t for t in _mixed("qwen3-32b", "Q4_K_M") if t.role == "ffn.down"]
    wide = [t.layer for t in down if t.format.name == "q6_k"]
    assert wide[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 10, 13]
    assert wide[-8:] == list(range(56, 64))


def test_eighty_layers_and_eight_experts_are_special() -> None:
    values = Counter(t.format.name for t in _mixed("llama-3.1-70b", "Q4_K_M") if t.role == "attention.v")
    assert values == {"q5_k": 40, "q6_k": 40}
    mixture = {t.role: t.format.name for t in _mixed("mixtral-8x7b", "Q4_K_M")}
    assert (mixture["attention.v"], mixture["attention.k"], mixture["attention.o"]) == ("q8_0", "q8_0", "q5_k")


def test_rows_that_are_no_whole_blocks_fall_back() -> None:
    """gpt-oss has rows of 2,880: no multiple of 256, so Q4_K becomes Q5_0 and Q6_K becomes Q8_0."""
    formats = {t.role: t.format.name for t in _mixed("gpt-oss-20b", "Q4_K_S")}
    assert formats["attention.q"] == "q5_0"
    assert formats["head"] == "q8_0"


@pytest.mark.parametrize("name", ["qwen3-32b", "qwen3-30b-a3b", "llama-3.1-8b"])
def test_wider_mixes_are_larger(name: str) -> None:
    mixes = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0")
    sizes = [sum(t.bytes for t in _mixed(name, mix)) for mix in mixes]
    assert sizes == sorted(sizes)


def test_a_recipe_that_nobody_published_is_taken_like_the_nearest_and_less_sure() -> None:
    own, like = (requantize(load_model("qwen3-32b"), name) for name in ("UD-Q4_K_XL", "Q4_K_M"))
    assert [t.format for t in own.tensors] == [t.format for t in like.tensors]
    spread = {"exact_weights_relative": 0.01, "quantized_weights_relative": 0.03, "assumed_4_bit_relative": 0.1}
    assert weights_relative(own, spread) == 0.1
    assert weights_relative(like, spread) == 0.03
