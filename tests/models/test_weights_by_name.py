"""Weights that only a repository's name states: ExLlama's bits per weight, MLX by its publisher, unsloth's dynamic GGUF files."""

from __future__ import annotations

import pytest

from trilemma.models.architecture import Model
from trilemma.models.naming import bits_a_weight, spell
from trilemma.models.resolve import load_model
from trilemma.quantities import GIB


def matrices(model: Model) -> float:
    """Bytes of the layers' matrices."""
    return float(sum(tensor.bytes for tensor in model.tensors if tensor.part == "layers" and len(tensor.shape) > 1))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("turboderp/Qwen3-8B-exl3:4.0bpw", 4.0),
        ("turboderp/Qwen3-8B-exl3-5.0bpw-h6", 5.0),
        ("someone/Qwen3-8B-EXL3-3.5bpw", 3.5),
        ("turboderp/Qwen3-8B-exl2-6.0bpw", 6.0),
    ],
)
def test_exllama_repositories_state_bits_per_weight(name: str, bits: float) -> None:
    model, plain = load_model(name), load_model("Qwen/Qwen3-8B")
    assert matrices(model) / matrices(plain) == pytest.approx(bits / 16, rel=1e-3)
    assert model.quantization is not None
    assert model.quantization.method.startswith("exl")
    assert any(f"{bits:g} bits each" in note for note in model.assumptions)


def test_a_size_nobody_states_stays_unknown() -> None:
    model = load_model("someone/Qwen3-8B-exl3")
    assert model.quantization is not None
    assert model.quantization.weight_format is None
    assert bits_a_weight("Qwen3-8B-exl3-99bpw") is None
    assert bits_a_weight("model-4.0bpwx") is None


def test_four_bits_of_mlx_are_not_those_of_others() -> None:
    """4.5 bits in mlx-community's, ends among them; 4.125 in llm-compressor's, ends left alone."""
    mlx, other = spell("mlx-community/Qwen3-8B-4bit").scheme, spell("someone/Qwen3-8B-4bit").scheme
    assert mlx is not None
    assert other is not None
    assert (mlx.name, other.name) == ("mlx-4bit", "w4a16")
    assert spell("mlx-community/Qwen3-8B-4bit-DWQ").bare == spell("mlx-community/Qwen3-8B-4bit").bare
    assert spell("lmstudio-community/Qwen3-8B-MLX-4bit").scheme == mlx


@pytest.mark.parametrize(
    ("quant", "gib"),
    [("UD-Q2_K_XL", 3.3), ("UD-Q3_K_XL", 4.1), ("UD-Q4_K_XL", 5.0), ("UD-Q5_K_XL", 5.7), ("UD-Q6_K_XL", 7.6), ("UD-Q8_K_XL", 9.2),
     ("UD-IQ1_S", 2.0), ("UD-IQ2_XXS", 2.4), ("UD-IQ3_XXS", 3.1), ("IQ4_NL", 4.5), ("Q2_K_L", 3.6)],
)  # fmt: skip
def test_every_dynamic_gguf_name_is_known(quant: str, gib: float) -> None:
    """Files of unsloth/Qwen3-8B-GGUF are within a sixth of the nearest mix."""
    model = load_model(f"unsloth/Qwen3-8B-GGUF:{quant}")
    assert sum(tensor.bytes for tensor in model.tensors) / GIB == pytest.approx(gib, rel=0.17)
