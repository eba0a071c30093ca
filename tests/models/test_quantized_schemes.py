"""Named schemes laid over an architecture."""

from __future__ import annotations

import pytest

from trilemma.errors import UnknownName
from trilemma.models.parameters import weight_bytes
from trilemma.models.quantized import find_scheme, requantize
from trilemma.models.quantized.schemes import schemes
from trilemma.models.resolve import load_model

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "scheme", "gib", "source"),
    [
        # "Model loading took" lines of vLLM 0.19 on one H100; two GPUs hold halves.
        ("llama-3.1-8b", "fp8", 8.49, "vLLM --quantization fp8"),
        ("llama-3.3-70b", "fp8-dynamic", 2 * 33.88, "RedHatAI FP8-dynamic, TP 2"),
        ("qwen2.5-7b", "w8a8", 8.14, "RedHatAI quantized.w8a8"),
        ("mistral-small-3.1-24b", "w8a8", 24.07, "RedHatAI quantized.w8a8"),
        ("llama-3.1-8b", "gptq", 5.38, "RedHatAI quantized.w4a16, loaded as gptq_marlin"),
    ],
)
def test_sizes_that_an_engine_printed(model, scheme, gib, source):
    found = weight_bytes(requantize(load_model(model), scheme)) / GIB
    assert found == pytest.approx(gib, rel=0.01), source


def test_embedding_head_norms_and_routers_are_left_alone():
    model = requantize(load_model("qwen3-30b-a3b"), "awq")
    kept = {tensor.role for tensor in model.tensors if tensor.format.name == "bf16"}
    assert {"embedding", "head", "norm", "router"} <= kept
    assert {tensor.format.name for tensor in model.tensors if tensor.role.startswith("experts.")} == {"int4_g128_zp4"}
    assert any("awq" in note for note in model.assumptions)


def test_a_quantised_checkpoint_taken_as_16_bit_has_every_parameter_in_two_bytes():
    model = requantize(load_model("deepseek-v3"), "bf16")
    assert model.quantization is None
    assert weight_bytes(model) == pytest.approx(2 * 671_026_419_200, rel=1e-4)


def test_mxfp4_limits_itself_to_experts():
    model = requantize(load_model("qwen3-235b-a22b"), "mxfp4")
    small = {tensor.role.partition(".")[0] for tensor in model.tensors if tensor.format.bits == 4}
    assert small == {"experts"}


def test_requantising_twice_forgets_the_first():
    model = load_model("llama-3.1-8b")
    assert requantize(requantize(model, "nvfp4"), "fp8").tensors == requantize(model, "fp8").tensors


@pytest.mark.parametrize(
    ("text", "name"),
    [("int4 (AutoRound)", "gptq"), ("gptq_marlin", "gptq"), ("4-bit (kind not stated)", "w4a16"), ("W4A16", "w4a16"),
     ("gguf UD-IQ4_NL", "gguf-ud-iq4_nl"), ("Q4_K_M", "gguf-q4_k_m"), ("FP8 dynamic", "fp8-dynamic"), ("bf16", "bf16"),
     ("bitsandbytes", "nf4"), ("nvfp4", "nvfp4")],
)  # fmt: skip
def test_spellings_of_schemes(text, name):
    assert find_scheme(text).name == name


def test_an_unknown_scheme_offers_near_names():
    with pytest.raises(UnknownName, match="nvfp4"):
        find_scheme("nvfp44")


def test_every_scheme_says_where_it_comes_from():
    for scheme in schemes():
        assert not scheme.quantises or scheme.source


@pytest.mark.parametrize(
    ("model", "narrow"),
    [
        # hf_quant_config.json of nvidia/Qwen3-235B-A22B-NVFP4 excludes lm_head and routers alone
        ("qwen3-235b-a22b", True),
        # vllm/model_executor/models/llama4.py permutes queries and keys that lie packed in FP4
        ("llama-4-scout", True),
        # nvidia/Qwen3.5-122B-A10B-NVFP4 excludes self_attn and shared experts, nvidia/GLM-5.1-NVFP4 self_attn
        ("qwen3.5-122b-a10b", False),
        ("glm-5.1", False),
    ],
)
def test_nvfp4_mixtures_keep_attention_beside_states_or_latents_alone(model: str, narrow: bool) -> None:
    stored = requantize(load_model(model), "nvfp4")
    roles = {
        one.role.partition(".")[0]: one.format.name
        for one in stored.tensors
        if one.part == "layers" and len(one.shape) > 1
    }
    kept = {roles[role] for role in ("attention", "mla", "shared") if role in roles}
    assert kept == ({"nvfp4"} if narrow else {"bf16"})
