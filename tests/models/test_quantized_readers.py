"""Descriptions of quantised checkpoints: what each method's fields mean in bits, and which modules they leave alone."""

from __future__ import annotations

import pytest

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.models.quantized import format_of, read_quantization
from trilemma.models.quantized.patterns import matcher

BF16 = catalogue.get("bf16")
LARGE = (4096, 4096)
G128 = {"group_size": 128}
INT4_G32 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}


def read(description, *, quant_config=None, **config):
    return read_quantization({**config, "quantization_config": description}, dtype=BF16, quant_config=quant_config)


def bits(description, **config):
    found = read(description, **config)
    return 8 * found.weight_format.storage_bytes(LARGE) / 4096**2


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        # 4 bits + 16-bit scale + 4-bit zero point per 128: GPTQ keeps zero points even when symmetric.
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True}, 4.15625),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 8.75),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, 4.15625),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}, 4.25),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 8 + 32 / 4096**2),
        ({"quant_method": "fbgemm_fp8"}, 8 + 32 / 4096),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8 + 32 / 4096),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 4.5 + 32 / 4096**2),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8 + 32 / 4096**2),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, 4.125),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, 4.15625),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, 4.5),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": G128}}}, 4.25),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}, 4.25),
        ({"quant_method": "exl3", "bits": 5.0}, 5.0),
    ],
)  # fmt: skip
def test_bits_of_a_large_matrix(description, expected):
    assert bits(description) == pytest.approx(expected, rel=1e-9)


def test_double_quantised_nf4_takes_an_eighth_of_a_bit_for_scales():
    # Dettmers et al. 2023: 8/64 + 32/(64·256) = 0.127 bits.
    assert bits({"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True}) == pytest.approx(4.127, abs=1e-3)


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}, "int4_g128"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}, "int4_g32_zp4"),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, "int8_channel"),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "fp8_channel"),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "fp8_tensor"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, "fp8_block"),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "nvfp4"),
        ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, "mxfp4"),
    ],
)
def test_compressed_tensors_strategies(weights, name):
    found = read(
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
    )
    assert found.weight_format.name == name


def test_compressed_tensors_groups_with_targets_of_their_own():
    found = read(
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"targets": ["re:.*mlp\\.experts.*"], "weights": INT4_G32},
                "b": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
            },
            "ignore": ["lm_head", "re:.*self_attn.*"],
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        }
    )  # fmt: skip
    expected = {
        ("model.layers.3.mlp.experts.0.gate_proj.weight", "experts.gate"): "int4_g32",
        ("model.layers.3.mlp.shared_expert.gate_proj.weight", "shared.gate"): "fp8_channel",
        ("model.layers.3.self_attn.q_proj.weight", "attention.q"): "bf16",
        ("lm_head.weight", "head"): "bf16",
    }
    assert {key: format_of(found, *key, BF16).name for key in expected} == expected
    assert found.kv_format == "fp8"


def test_expert_formats_stand_apart():
    mxfp4 = read({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    assert format_of(mxfp4, "model.layers.0.mlp.experts.0.up_proj.weight", "experts.up", BF16).name == "mxfp4"
    assert format_of(mxfp4, "model.layers.0.mlp.experts.0.up_proj.bias", "bias", BF16) is BF16
    assert format_of(mxfp4, "model.layers.0.self_attn.q_proj.weight", "attention.q", BF16) is BF16
    deepseek = read({"quant_method": "fp8", "weight_block_size": [128, 128]}, expert_dtype="fp4")
    assert format_of(deepseek, "layers.0.ffn.experts.0.w1.weight", "experts.gate", BF16).name == "mxfp4"
    attention = format_of(deepseek, "layers.0.attn.wq_a.weight", "mla.q_a", BF16)
    assert (attention.name, attention.scale_bits) == ("fp8_block", 8)


def test_modelopt_file_beside_the_configuration():
    beside = {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": "FP8",
            "quantized_layers": {
                "model.layers.0.mlp.down_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"},
            },
            "exclude_modules": ["mtp*"],
        },
    }
    found = read_quantization({}, dtype=BF16, quant_config=beside)
    names = {
        name: format_of(found, f"model.layers.{name}.weight", "ffn.down", BF16).name
        for name in ("0.mlp.down_proj", "0.self_attn.o_proj", "1.mlp.down_proj")
    }
    assert names == {"0.mlp.down_proj": "nvfp4", "0.self_attn.o_proj": "fp8_tensor", "1.mlp.down_proj": "bf16"}
    assert found.kv_format == "fp8"


@pytest.mark.parametrize(
    "description",
    [
        {"quant_method": "exl3"},
        {"quant_method": "made_up"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    ],
)
def test_what_is_not_stated_is_not_guessed(description):
    found = read(description)
    assert found.weight_format is None
    assert found.notes
    assert found.method in (description["quant_method"],)


@pytest.mark.parametrize(
    ("description", "word"),
    [
        ({"quant_method": "gptq", "bits": -4}, "bits"),
        ({"quant_method": "gptq", "bits": float("nan")}, "bits"),
        ({"quant_method": "awq", "group_size": 0.5}, "group_size"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "modules_to_not_convert": 7}, "modules_to_not_convert"),
        ({"quant_method": ["fp8"]}, "quant_method"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 3.5}}}}, "int"),
        ("fp8", "quantization_config"),
    ],
)
def test_values_that_cannot_be_are_named(description, word):
    with pytest.raises(InputError, match=word):
        read(description)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("gate", "model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj"),
        ("lm_head", "lm_head", "model.layers.0.mlp.gate_proj"),
        ("model.layers.0*", "model.layers.0.mlp.up_proj", "model.layers.10.mlp.up_proj"),
        ("model.language_model.layers.3.self_attn*", "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.up_proj"),
        ("*.attn.*", "layers.2.attn.wq_a", "layers.2.ffn.w1"),
        (
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "model.layers.0.mlp.up_proj",
            "model.layers.0.mlp.experts.0.up_proj",
        ),
        ("model.layers.1.self_attn.qkv_proj", "model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.o_proj"),
        (
            "layers.0.ffn.experts",
            "model.layers.0.mlp.experts.0.gate_proj",
            "model.layers.0.mlp.shared_experts.gate_proj",
        ),
        ("model.layers.5.block_sparse_moe.gate", "model.layers.5.mlp.gate", "model.layers.55.mlp.gate"),
    ],
)
def test_patterns(pattern, yes, no):
    compiled = matcher((pattern,))
    assert compiled.matches(f"{yes}.weight")
    assert not compiled.matches(f"{no}.weight")
