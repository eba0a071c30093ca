"""A hub id of one publisher is never answered with a checkpoint that another quantised."""

from __future__ import annotations

import pytest

from trilemma.models.architecture import Model
from trilemma.models.resolve import load_model


@pytest.fixture(autouse=True)
def _catalogue_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRILEMMA_MODELS", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _stored(model: Model, role: str) -> set[str]:
    return {tensor.format.name for tensor in model.tensors if tensor.role == role}


def test_a_sibling_of_another_publisher_lends_its_architecture_alone() -> None:
    """Meta's FP8 checkpoint of the 405B leaves attention in 16 bits and its cache unstated; NVIDIA's quantises every linear layer
    but lm_head and asks for an FP8 cache, as hf_quant_config.json of its 70B says."""
    theirs, other = (load_model(f"{org}/Llama-3.1-405B-Instruct-FP8") for org in ("nvidia", "meta-llama"))
    assert _stored(theirs, "attention.q") == {"fp8_tensor"}
    assert _stored(theirs, "head") == {"bf16"}
    assert _stored(other, "attention.q") == {"bf16"}
    assert theirs.quantization is not None
    assert theirs.quantization.kv_format == "fp8"
    assert other.quantization is not None
    assert other.quantization.kv_format is None
    assert sum(t.bytes for t in theirs.tensors) == pytest.approx(410.1e9, rel=2e-3)
    assert sum(t.bytes for t in theirs.tensors) < sum(t.bytes for t in other.tensors) * 0.9


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "fp8"),
        ("nvidia/Qwen2.5-72B-Instruct-FP8", "fp8"),
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", "fp8"),
        ("RedHatAI/Qwen2.5-7B-Instruct-FP8-dynamic", None),
        ("someone/Qwen2.5-72B-Instruct-FP8", None),
    ],
)
def test_caches_follow_the_conventions_of_the_publisher(name: str, kv: str | None) -> None:
    quantization = load_model(name).quantization
    assert quantization is not None
    assert quantization.kv_format == kv


@pytest.mark.parametrize("org", ["meta-llama", "nvidia"])
def test_the_maker_beside_a_scheme_means_the_checkpoint_that_is_known(org: str) -> None:
    """Meta published no FP8 checkpoint of the 70B; tables that write one by its name ran NVIDIA's."""
    model = load_model(f"{org}/Llama-3.1-70B-Instruct-FP8")
    assert model.quantization is not None
    assert model.quantization.kv_format == "fp8"
    assert load_model("someone/Llama-3.1-70B-Instruct-FP8").quantization.kv_format is None  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["unsloth/DeepSeek-R1", "nvidia/DeepSeek-V3", "someone/gpt-oss-20b"])
def test_mirrors_of_models_published_narrow_stay_as_they_are(name: str) -> None:
    """The word of a scheme is not in the name of the original: what is mirrored is the original."""
    own = load_model(name.partition("/")[2].lower())
    assert [t.format for t in load_model(name).tensors] == [t.format for t in own.tensors]
