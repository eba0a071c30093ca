"""File types of llama-quantize against what llama.cpp prints of published files."""

from __future__ import annotations

from collections import Counter

import pytest

from trilemma.engines.loading import weights_relative
from trilemma.models.quantized.schemes import requantize
from trilemma.models.resolve import load_model
from trilemma.quantities import GIB

#: Half-widths by the names of the engines' coefficients.
SPREAD = {"exact_weights_relative": 0.01, "quantized_weights_relative": 0.03, "assumed_4_bit_relative": 0.1}


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
    assert [t.format for t in own.of_part("layers")] == [t.format for t in like.of_part("layers")]
    assert weights_relative(own, SPREAD) == 0.1
    assert weights_relative(like, SPREAD) == 0.03


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        # Files of unsloth/Qwen3.8-27B-GGUF without the tower, in GiB.
        ("Q4_K_M", 15.93), ("UD-Q4_K_XL", 16.69), ("Q5_K_M", 18.47), ("UD-Q5_K_XL", 18.83), ("Q6_K", 21.31),
        ("UD-Q6_K_XL", 24.14), ("Q8_0", 27.05), ("UD-Q8_K_XL", 29.30),
    ],
)  # fmt: skip
def test_files_of_one_model_are_as_large_as_published(name: str, gib: float) -> None:
    model = requantize(load_model("qwen3.8-27b"), name)
    size = sum(tensor.bytes for tensor in model.tensors if tensor.part != "vision")
    assert size / 2**30 == pytest.approx(gib, rel=0.045)


@pytest.mark.parametrize("name", ["UD-IQ1_S", "UD-IQ1_M", "UD-IQ2_XXS", "UD-IQ2_M", "UD-Q2_K_XL", "UD-IQ3_XXS", "UD-IQ3_S",
                                  "UD-Q3_K_M", "UD-Q3_K_XL", "UD-IQ4_NL", "UD-Q4_K_XL", "UD-Q6_K", "UD-TQ1_0"])  # fmt: skip
def test_every_dynamic_name_states_its_bits_and_is_less_sure(name: str) -> None:
    """Each is stored in about the bits of its name (more for what a mix keeps), and 10 % of the bytes stay open."""
    model = load_model(f"unsloth/Qwen3-32B-GGUF:{name}")
    bits = sum(t.bytes for t in model.tensors) * 8 / sum(t.elements for t in model.tensors)
    stated = int(next(char for char in name.removeprefix("UD-") if char.isdigit()))
    assert stated <= bits <= stated + 1.7
    assert model.quantization is not None
    assert model.quantization.method == "gguf"
    assert any("nearest mix" in note for note in model.assumptions)
    assert weights_relative(model, SPREAD) == SPREAD["assumed_4_bit_relative"]


def test_the_ladder_of_dynamic_names_never_falls() -> None:
    names = ["UD-IQ1_S", "UD-IQ1_M", "UD-IQ2_XXS", "UD-IQ2_M", "UD-Q2_K_XL", "UD-Q3_K_XL", "UD-Q4_K_XL", "UD-Q5_K_XL",
             "UD-Q6_K_XL", "UD-Q8_K_XL"]  # fmt: skip
    sizes = [sum(t.bytes for t in requantize(load_model("llama-3.1-8b"), name).tensors) for name in names]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(("name", "low", "high"), [("IQ5_KS", 5, 6.2), ("IQ4_KT", 4, 5.2), ("IQ2_KL", 2, 3.4)])
def test_types_that_are_not_known_are_read_by_their_bits(name: str, low: float, high: float) -> None:
    model = load_model(f"someone/Qwen3-32B-GGUF:{name}")
    bits = sum(t.bytes for t in model.tensors) * 8 / sum(t.elements for t in model.tensors)
    assert low <= bits <= high
    assert weights_relative(model, SPREAD) > SPREAD["quantized_weights_relative"]


@pytest.mark.parametrize("name", ["BF16", "F16"])
def test_files_of_16_bits_are_not_a_riddle(name: str) -> None:
    model = load_model(f"unsloth/Qwen3-32B-GGUF:{name}")
    assert model.quantization is None
    assert not model.unknown_fields
